"""The loop of virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Items

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.simulator.controller import Controller
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
        #: Events that engines will send, by number.
        self._notices: dict[int, events.Event] = {}
        self._last_notice = 0
        #: (time, 0: arrival, 1: engine, 2: notice, its index, epoch or number)
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
            elif kind == 2:
                self._handle(self._notices.pop(index), now_ns)
            else:
                worker = self._workers[index]
                self._handle(worker.finish_phase(now_ns), now_ns)
                self._go_on(worker, now_ns)
        waiting = sum(not record.ended for record in self.result.records)
        assert not waiting, f"{waiting} requests were forgotten"
        self._add_up(now_ns)
        return self.result

    def _submit(self, record: RequestRecord, now_ns: int) -> None:
        number, following = self._controller.submit(record.arrival, now_ns)
        if number:
            self._records[number] = record
        else:
            record.refused = True
        self._carry_out(following, now_ns)

    def _handle(self, event: events.Event, now_ns: int) -> None:
        if isinstance(event, events.StepDone) and event.turn_id:
            self.result.steps += 1
            for number in self._controller.requests_of(event):
                self._records[number].add_token(now_ns)
        self._carry_out(self._controller.handle(event, now_ns), now_ns)

    def _go_on(self, worker: SimulatedWorker, now_ns: int) -> None:
        if worker.phase is Phase.IDLE:
            while (event := worker.go_on(now_ns)) is not None:
                self._handle(event, now_ns)
                if worker.phase is not Phase.IDLE:  # a command had it go on already
                    break
            else:
                if worker.phase is not Phase.IDLE:
                    heapq.heappush(self._agenda, (worker.due_ns, 1, worker.epoch))
        self._take_notices(worker)

    def _take_notices(self, worker: SimulatedWorker) -> None:
        for due_ns, event in worker.notices:
            self._last_notice += 1
            self._notices[self._last_notice] = event
            heapq.heappush(self._agenda, (due_ns, 2, self._last_notice))
        worker.notices.clear()

    def _carry_out(self, following: list[commands.Command], now_ns: int) -> None:
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
                case _:
                    worker = self._workers[command.epoch]  # type: ignore[union-attr]
                    worker.take(command, now_ns)
                    self._take_notices(worker)
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
