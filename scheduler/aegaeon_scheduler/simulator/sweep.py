"""Many simulations on the same machines, one line of results each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

from aegaeon_scheduler.simulator.bound import attainment_bound
from aegaeon_scheduler.simulator.catalog import Device
from aegaeon_scheduler.simulator.controller import Controller
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.policies import POLICIES
from aegaeon_scheduler.simulator.results import SimulationResult
from aegaeon_scheduler.simulator.scenario import Scenario
from aegaeon_scheduler.simulator.simulation import Simulation
from aegaeon_scheduler.simulator.stopwatch import Stopwatch

#: Name of the line that no policy can exceed.
BOUND = "bound"


@dataclass(frozen=True, slots=True)
class Point:
    """One policy on one workload; ``result`` is None for the bound."""

    title: str
    x: float
    policy: str
    attainment: float
    result: SimulationResult | None = None
    #: Processor time of the whole simulation, and of it, of the policy's decisions.
    seconds: float = 0.0
    decision_seconds: float = 0.0
    #: Events of engines that the policy was told.
    events: int = 0


@dataclass(frozen=True, slots=True)
class Hardware:
    """Equal engines on equal nodes."""

    device: Device
    nodes: int = 2
    engines: int = 16

    def __post_init__(self) -> None:
        for name in ("nodes", "engines"):
            if getattr(self, name) < 1:
                raise InputError(f"there are {getattr(self, name)} {name}; at least 1 is needed")
        if self.engines % self.nodes:
            raise InputError(
                f"{self.engines} engines cannot be shared equally by {self.nodes} nodes"
            )

    def simulate(self, policy: str, scenario: Scenario) -> SimulationResult:
        """A policy on a workload."""
        return self._run(policy, scenario, _unwatched)

    def bound(self, scenario: Scenario) -> float:
        """Share of token deadlines that no policy can exceed."""
        return attainment_bound(scenario.arrivals, self._machines(scenario), scenario.objectives)

    def point(self, scenario: Scenario, policy: str) -> Point:
        """A policy on a workload, with the time that simulating it took."""
        watches: list[Stopwatch] = []

        def watched(controller: Controller) -> Controller:
            watches.append(Stopwatch(controller))
            return watches[-1]

        start = time.thread_time()
        result = self._run(policy, scenario, watched)
        taken = time.thread_time() - start
        return Point(
            scenario.title,
            scenario.x,
            policy,
            result.token_attainment,
            result,
            taken,
            watches[0].seconds,
            watches[0].events,
        )

    def points(self, scenario: Scenario, policies: Items[str]) -> Iterator[Point]:
        """Every policy on a workload, and the bound."""
        for policy in policies:
            yield self.point(scenario, policy)
        yield Point(scenario.title, scenario.x, BOUND, self.bound(scenario))

    def _run(
        self, policy: str, scenario: Scenario, watch: Callable[[Controller], Controller]
    ) -> SimulationResult:
        scenario.objectives.check(scenario.shapes, self.device.name)
        machines = self._machines(scenario)
        controller = watch(POLICIES[policy](machines, scenario.objectives))
        return Simulation(
            policy, controller, machines.workers(), scenario.arrivals, scenario.objectives
        ).run()

    def _machines(self, scenario: Scenario) -> Machines:
        return Machines(self.device, scenario.shapes, self.nodes, self.engines // self.nodes)


def _unwatched(controller: Controller) -> Controller:
    return controller


def lines_of(points: Items[Point]) -> dict[str, list[tuple[float, float]]]:
    """Attainment by x of every policy, in order of their first appearance."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        lines.setdefault(point.policy, []).append((point.x, point.attainment))
    return {policy: sorted(line) for policy, line in lines.items()}


def capacities(points: Items[Point]) -> dict[str, float | None]:
    """`capacity` of every policy; empty when the points are no line."""
    sizes = [point.x for point in points if point.policy == points[0].policy]
    if not 1 < len(sizes) == len(set(sizes)):
        return {}
    return {policy: capacity(line) for policy, line in lines_of(points).items()}


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
