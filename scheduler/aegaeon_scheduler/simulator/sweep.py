"""Many simulations, one line of results each, and the capacity they show."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path

from aegaeon_scheduler.simulator.bound import attainment_bound
from aegaeon_scheduler.simulator.catalog import Device, ModelShape
from aegaeon_scheduler.simulator.machines import Machines, assign_shapes
from aegaeon_scheduler.simulator.policies import POLICIES
from aegaeon_scheduler.simulator.results import Objective, SimulationResult
from aegaeon_scheduler.simulator.simulation import Simulation
from aegaeon_scheduler.simulator.workload import Arrival

_BOUND = "bound"


@dataclass(frozen=True, slots=True)
class Point:
    """One policy on one workload; ``result`` is None for the bound."""

    x: float
    policy: str
    attainment: float
    result: SimulationResult | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The machines and limits that stay the same for all workloads."""

    device: Device
    shapes: Items[ModelShape]
    objective: Objective
    nodes: int
    engines_per_node: int

    def simulate(self, x: float, arrivals: Items[Arrival], policies: Items[str]) -> Iterator[Point]:
        """Every policy on a workload, and the bound."""
        machines = Machines(
            self.device, assign_shapes(arrivals, self.shapes), self.nodes, self.engines_per_node
        )
        for policy in policies:
            controller = POLICIES[policy](machines, self.objective)
            simulation = Simulation(
                policy, controller, machines.workers(), arrivals, self.objective
            )
            result = simulation.run()
            yield Point(x, policy, result.token_attainment, result)
        yield Point(x, _BOUND, attainment_bound(arrivals, machines, self.objective))


def lines_of(points: Items[Point]) -> dict[str, list[tuple[float, float]]]:
    """Attainment by x of every policy, in order of their first appearance."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        lines.setdefault(point.policy, []).append((point.x, point.attainment))
    return {policy: sorted(line) for policy, line in lines.items()}


def capacity(line: Items[tuple[float, float]], share: float = 0.9) -> float | None:
    """Where a line falls below ``share``, between its points; None if it never does.

    The last crossing counts: noise of a small workload must not hide what a larger one holds.
    """
    for (x1, y1), (x2, y2) in zip(line[-2::-1], line[:0:-1], strict=True):
        if y1 >= share > y2:
            return x1 + (y1 - share) / (y1 - y2) * (x2 - x1)
    if line[0][1] < share:
        return 0.0
    return None


def write_summary(path: Path, points: Items[Point], x_name: str) -> None:
    """One CSV row per simulation."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        columns = "policy token_attainment request_attainment busy switching idle switches steps"
        out.writerow([x_name, *columns.split()])
        for point in points:
            out.writerow([f"{point.x:g}", point.policy, f"{point.attainment:.4f}", *_row(point)])


def _row(point: Point) -> list[str]:
    result = point.result
    if result is None:
        return [""] * 6
    shares = (
        result.request_attainment,
        result.busy_share,
        result.switching_share,
        result.idle_share,
    )
    return [*(f"{share:.4f}" for share in shares), str(result.switches), str(result.steps)]
