"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.simulator.controller import Controller
from aegaeon_scheduler.simulator.core_controller import CoreController
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.objective import Objectives
from aegaeon_scheduler.simulator.request_level import RequestLevelPolicy
from aegaeon_scheduler.simulator.static_multiplexing import StaticMultiplexing

#: As its authors ran it, with work stealing.
_MIN_BATCH_GAP = 2


def _core(
    policy: SchedulingPolicy, machines: Machines, objectives: Objectives, prefill_engines: int = 0
) -> Controller:
    """The core without queue limits: past capacity, requests wait and miss their deadlines."""
    config = CoreConfig(
        max_requests=1 << 40,
        max_requests_per_model=1 << 40,
        max_tokens=1 << 60,
        max_tokens_per_model=1 << 60,
        policy=policy,
        ttft_slo_ns=objectives.common.ttft_ns,
        tpot_slo_ns=objectives.common.tpot_ns,
        stealing_min_batch_gap=_MIN_BATCH_GAP if prefill_engines else 0,
    )
    return CoreController(Cluster(config), machines, objectives, prefill_engines)


def _published(machines: Machines, objectives: Objectives) -> Controller:
    """Three of eight engines of a node prefill, as on the published testbed."""
    engines = machines.engines_per_node
    if engines < least_engines_per_node("published"):
        raise InputError("the published policy needs two engines per node: prefill and decode")
    prefill_engines = max(1, round(engines * 3 / 8))
    return _core(SchedulingPolicy.PUBLISHED, machines, objectives, prefill_engines)


def _request_level(machines: Machines, objectives: Objectives) -> Controller:
    return RequestLevelPolicy(machines)


def _static(machines: Machines, objectives: Objectives) -> Controller:
    return StaticMultiplexing(machines)


#: Makes a controller for machines and objectives.
ControllerFactory = Callable[[Machines, Objectives], Controller]

POLICIES: dict[str, ControllerFactory] = {
    "deadline": partial(_core, SchedulingPolicy.DEADLINE),
    "published": _published,
    "request-level": _request_level,
    "static": _static,
    "round-robin": partial(_core, SchedulingPolicy.ROUND_ROBIN),
}
#: What the scheduler runs unless told otherwise.
DEFAULT_POLICY = SchedulingPolicy.DEADLINE.value


def least_engines_per_node(policy: str) -> int:
    """What a policy needs to work at all."""
    return 2 if policy == "published" else 1


def parse_policies(text: str) -> list[str]:
    """Names with commas between; raises `InputError` for one that does not exist."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise InputError.unknown("policy", name, POLICIES)
    return list(dict.fromkeys(names))
