"""The loop of virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Items

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.simulator.controller import Controller, HandOver, SimulatedCommand
from aegaeon_scheduler.simulator.objective import Objectives
from aegaeon_scheduler.simulator.results import RequestRecord, SimulationResult
from aegaeon_scheduler.simulator.worker import Phase, SimulatedWorker
from aegaeon_scheduler.simulator.workload import Arrival


class Simulation:
    """One workload, one controller, some engines. Commands and events take no time to travel."""

    def __init__(
        self,
        policy: str,
        controller: Controller,
        workers: Items[SimulatedWorker],
        arrivals: Items[Arrival],
        objectives: Objectives,
    ) -> None:
        self._controller = controller
        self._workers = {worker.epoch: worker for worker in workers}
        self._records: dict[int, RequestRecord] = {}
        #: (time, 0 for arrivals before 1 for engines, index or epoch)
        self._agenda = [(arrival.time_ns, 0, index) for index, arrival in enumerate(arrivals)]
        heapq.heapify(self._agenda)
        records = [RequestRecord(arrival, objectives.of(arrival.model)) for arrival in arrivals]
        self.result = SimulationResult(policy, records, len(workers))

    def run(self) -> SimulationResult:
        """Until every request has ended."""
        now_ns = 0
        while self._agenda:
            now_ns, kind, index = heapq.heappop(self._agenda)
            if kind == 0:
                self._submit(self.result.records[index], now_ns)
            else:
                worker = self._workers[index]
                self._handle(worker.finish_phase(now_ns), now_ns)
                self._go_on(worker, now_ns)
        waiting = sum(not record.ended for record in self.result.records)
        assert not waiting, f"{waiting} requests were forgotten"
        self._add_up(now_ns)
        return self.result

    def _submit(self, record: RequestRecord, now_ns: int) -> None:
        handle, following = self._controller.submit(record.arrival, now_ns)
        if handle:
            self._records[handle] = record
        else:
            record.refused = True
        self._carry_out(following, now_ns)

    def _handle(self, event: events.Event, now_ns: int) -> None:
        if isinstance(event, events.StepDone):
            self.result.steps += 1
            for handle in event.handles:
                self._records[handle].add_token(now_ns)
        self._carry_out(self._controller.handle(event, now_ns), now_ns)

    def _go_on(self, worker: SimulatedWorker, now_ns: int) -> None:
        if worker.phase is not Phase.IDLE:
            return
        while (event := worker.go_on(now_ns)) is not None:
            self._handle(event, now_ns)
            if worker.phase is not Phase.IDLE:  # a command had it go on already
                return
        if worker.phase is not Phase.IDLE:
            heapq.heappush(self._agenda, (worker.due_ns, 1, worker.epoch))

    def _carry_out(self, following: list[SimulatedCommand], now_ns: int) -> None:
        idle: dict[int, SimulatedWorker] = {}
        for command in following:
            match command:
                case commands.Publish():
                    continue
                case commands.Deliver(backlogs=backlogs):
                    for backlog in backlogs:
                        while backlog.take():
                            pass
                    continue
                case HandOver(epoch=epoch, handle=handle, target=target):
                    self._workers[target].adopt(self._workers[epoch].release(handle))
                case _:
                    self._workers[command.epoch].take(command)  # type: ignore[union-attr]
                    worker = self._workers[command.epoch]  # type: ignore[union-attr]
                    if isinstance(command, commands.QueueTurn) and len(worker.turns) == 1:
                        idle[worker.epoch] = worker
        for worker in idle.values():
            self._go_on(worker, now_ns)

    def _add_up(self, now_ns: int) -> None:
        result, workers = self.result, self._workers.values()
        result.duration_ns = now_ns
        result.busy_ns = sum(worker.busy_ns for worker in workers)
        result.switching_ns = sum(worker.switching_ns for worker in workers)
        result.switches = sum(worker.switches for worker in workers)
