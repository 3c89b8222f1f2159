"""Scheduling policies by name."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from aegaeon_scheduler.core.assignment import EnginePolicy, FewestSequences, LeastWork
from aegaeon_scheduler.core.deadline import DeadlineTurns
from aegaeon_scheduler.core.turns import RoundRobinTurns, TurnPolicy

if TYPE_CHECKING:
    from aegaeon_scheduler.core.config import CoreConfig


class SchedulingPolicy(enum.StrEnum):
    """How turns are planned, and which engine of a node takes a request."""

    DEADLINE = "deadline"
    ROUND_ROBIN = "round-robin"


def turn_policy(config: CoreConfig) -> TurnPolicy:
    """Plans the turns."""
    if config.policy is SchedulingPolicy.DEADLINE:
        return DeadlineTurns(config.max_quota_ns, config.max_wait_ns)
    return RoundRobinTurns(config.max_quota_ns)


def engine_policy(config: CoreConfig) -> EnginePolicy:
    """Chooses the engine of a request."""
    if config.policy is SchedulingPolicy.DEADLINE:
        return LeastWork(config.affinity_slack)
    return FewestSequences(config.affinity_slack)
