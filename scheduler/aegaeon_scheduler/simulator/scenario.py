"""What is simulated: requests, the models they are for, and when their tokens are due."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from aegaeon_scheduler.simulator.catalog import ModelShape
from aegaeon_scheduler.simulator.demand import Traffic, draw_workload
from aegaeon_scheduler.simulator.machines import assign_shapes
from aegaeon_scheduler.simulator.objective import Objective, Objectives
from aegaeon_scheduler.simulator.workload import Arrival


@dataclass(frozen=True, slots=True)
class Scenario:
    """One workload. ``x`` is its place in a picture: its number of models, or its rate.

    Shapes are by served model, and bear its name: two models never share weights.
    """

    title: str
    x: float
    arrivals: Items[Arrival]
    shapes: dict[str, ModelShape]
    objectives: Objectives

    @classmethod
    def drawn(
        cls, title: str, x: float, demand: Items[Traffic], seconds: float, seed: int
    ) -> Scenario:
        """Arrivals drawn from a demand."""
        return cls(
            title,
            x,
            draw_workload(demand, seconds, seed),
            {each.model: replace(each.shape, name=each.model) for each in demand},
            Objectives(own={traffic.model: traffic.objective for traffic in demand}),
        )

    @classmethod
    def replayed(
        cls, title: str, arrivals: Items[Arrival], shapes: Items[ModelShape], objective: Objective
    ) -> Scenario:
        """A given workload, whose models have the shapes in turn."""
        assigned = assign_shapes(arrivals, shapes)
        return cls(title, len(assigned), arrivals, assigned, Objectives(objective))
