"""Small simulated clusters."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.simulator.catalog import H800, read_shapes
from aegaeon_scheduler.simulator.controller import Controller
from aegaeon_scheduler.simulator.core_controller import CoreController
from aegaeon_scheduler.simulator.demand import draw_workload, same_traffic
from aegaeon_scheduler.simulator.machines import Machines, assign_shapes
from aegaeon_scheduler.simulator.objective import Objectives
from aegaeon_scheduler.simulator.policies import POLICIES
from aegaeon_scheduler.simulator.results import SimulationResult
from aegaeon_scheduler.simulator.simulation import Simulation
from aegaeon_scheduler.simulator.worker import SimulatedWorker
from aegaeon_scheduler.simulator.workload import Arrival

LENGTHS = [(700, 120), (30, 200), (1_500, 40), (2_000, 1)]


def small_machines(arrivals: Items[Arrival], pool_bytes: int = H800.pool_bytes) -> Machines:
    device = replace(H800, pool_bytes=pool_bytes)
    return Machines(device, assign_shapes(arrivals, read_shapes(device)), 2, 4)


def arrivals(models: int = 12, rate: float = 0.2, seconds: float = 20.0) -> list[Arrival]:
    return draw_workload(same_traffic(models, rate, read_shapes(H800), LENGTHS), seconds, seed=3)


class Auditor:
    """A controller that checks every ledger after everything that happens."""

    def __init__(self, inner: Controller, workers: Items[SimulatedWorker]) -> None:
        self._inner = inner
        self._workers = workers

    def submit(self, arrival: Arrival, now_ns: int) -> tuple[int, list[commands.Command]]:
        return self._inner.submit(arrival, now_ns)

    def requests_of(self, step: events.StepDone) -> list[int]:
        return self._inner.requests_of(step)

    def handle(self, event: events.Event, now_ns: int) -> list[commands.Command]:
        following = self._inner.handle(event, now_ns)
        for worker in self._workers:
            used, room = worker.pool.used_bytes(), worker.pool.device.pool_bytes
            assert used <= room, f"{used} of {room} bytes in use at {now_ns}"
            kept = sum(shape.packed_bytes for shape in worker.pool.weights.values())
            held = [s for held in worker.pool.kv.values() for s in held.values()]
            assert used == kept + sum(s.reserved * s.shape.kv_token_bytes for s in held)
        if isinstance(self._inner, CoreController):
            assert self._inner.cluster.audit() == []
        return following


def simulate(
    policy: str, workload: Items[Arrival], bed: Machines, audit: bool = True
) -> SimulationResult:
    objectives, workers = Objectives(), bed.workers()
    controller = POLICIES[policy](bed, objectives)
    if audit:
        controller = Auditor(controller, workers)
    return Simulation(policy, controller, workers, workload, objectives).run()
