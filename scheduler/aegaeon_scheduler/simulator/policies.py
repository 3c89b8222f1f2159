"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.simulator.controller import Controller
from aegaeon_scheduler.simulator.core_controller import CoreController
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.published import PublishedPolicy
from aegaeon_scheduler.simulator.request_level import RequestLevelPolicy
from aegaeon_scheduler.simulator.results import Objective
from aegaeon_scheduler.simulator.static_multiplexing import StaticMultiplexing


def _core(policy: SchedulingPolicy, machines: Machines, objective: Objective) -> Controller:
    """The core without queue limits: past capacity, requests wait and miss their deadlines."""
    config = CoreConfig(
        max_requests=1 << 40,
        max_requests_per_model=1 << 40,
        max_tokens=1 << 60,
        max_tokens_per_model=1 << 60,
        policy=policy,
        ttft_slo_ns=objective.ttft_ns,
        tpot_slo_ns=objective.tpot_ns,
    )
    return CoreController(Cluster(config), machines)


POLICIES: dict[str, Callable[[Machines, Objective], Controller]] = {
    "deadline": partial(_core, SchedulingPolicy.DEADLINE),
    "published": PublishedPolicy,
    "request-level": RequestLevelPolicy,
    "static": StaticMultiplexing,
    "round-robin": partial(_core, SchedulingPolicy.ROUND_ROBIN),
}
