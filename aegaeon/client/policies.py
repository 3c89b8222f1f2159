"""Policies that a client asks of the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from aegaeon.config.schema import PlacementPolicyName, RoutingPolicyName, SchedulingPolicyName
from aegaeon.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Policies:
    """Checked when it is made; raises ConfigError."""

    #: Chooses nodes for replicas.
    placement: PlacementPolicyName = "least-loaded"
    #: Chooses a node for a request; None leaves it to the scheduler.
    routing: RoutingPolicyName | None = None
    #: Plans turns, in a scheduler that is started here; a running one has its own.
    scheduling: SchedulingPolicyName = "deadline"
    #: Batches at which an idle decode engine takes one of another's; 0 is never.
    stealing_min_batch_gap: int = 0

    def __post_init__(self) -> None:
        for field, value, kind in (
            ("model_placement_policy", self.placement, PlacementPolicyName),
            ("request_routing_policy", self.routing, RoutingPolicyName),
            ("scheduling_policy", self.scheduling, SchedulingPolicyName),
        ):
            if value is not None and value not in get_args(kind):
                expected = ", ".join(get_args(kind))
                raise ConfigError(f"{field} = {value!r}: expected one of {expected}")
        gap = self.stealing_min_batch_gap
        if type(gap) is not int or gap < 0 or gap == 1:
            raise ConfigError(
                f"decode_work_stealing_min_batch_gap = {gap!r}: expected an integer of at least 2"
            )
