"""Scheduling policies by name."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from aegaeon_scheduler.core.assignment import FewestSequences, LeastWork
from aegaeon_scheduler.core.deadline import DeadlineTurns
from aegaeon_scheduler.core.planner import Planner
from aegaeon_scheduler.core.published import PublishedPlanner
from aegaeon_scheduler.core.run_to_completion import RunToCompletion
from aegaeon_scheduler.core.turns import RoundRobinTurns, TurnPlanner

if TYPE_CHECKING:
    from aegaeon_scheduler.core.config import CoreConfig


class SchedulingPolicy(enum.StrEnum):
    """How turns are planned, and which engine of a node takes a request."""

    DEADLINE = "deadline"
    ROUND_ROBIN = "round-robin"
    PUBLISHED = "published"
    REQUEST_LEVEL = "request-level"


def planner(config: CoreConfig) -> Planner:
    """Chooses engines and plans turns."""
    if config.policy is SchedulingPolicy.PUBLISHED:
        return PublishedPlanner(config.max_wait_ns)
    if config.policy is SchedulingPolicy.DEADLINE:
        turns = DeadlineTurns(config.max_quota_ns, config.max_wait_ns)
        return TurnPlanner(turns, LeastWork(config.affinity_slack))
    fewest = FewestSequences(config.affinity_slack)
    if config.policy is SchedulingPolicy.REQUEST_LEVEL:
        return TurnPlanner(RunToCompletion(), fewest)
    return TurnPlanner(RoundRobinTurns(config.max_quota_ns), fewest)
