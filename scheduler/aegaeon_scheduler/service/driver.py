"""Drives the policy core: feeds it events with the time, and carries out its commands."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from aegaeon.errors import AegaeonError, ErrorReason, UnavailableError
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.backlog import Backlog
from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.notices import Notice
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import GenerationRequest, ModelSpec
from aegaeon_scheduler.service.metrics import SchedulerMetrics
from aegaeon_scheduler.service.pacer import Pacer
from aegaeon_scheduler.service.rejoining import Rejoining
from aegaeon_scheduler.service.worker_commands import command_message
from aegaeon_scheduler.service.worker_link import WorkerLink

_log = logging.getLogger(__name__)

#: What the caller of an operation is told; an error when the daemon stops before its end.
OperationMessage = (
    commands.DeployProgressed | commands.DeployFinished | commands.UndeployFinished | AegaeonError
)


class Driver:
    """Single-threaded owner of the core; everything runs on one event loop."""

    def __init__(self, config: CoreConfig, rejoin_window_ns: int) -> None:
        self.cluster = Cluster(config)
        self.rejoining = Rejoining(self.cluster.state, rejoin_window_ns)
        self.started_unix_ns = time.time_ns()
        self.statistics_since_unix_ns = self.started_unix_ns
        self.closing = False
        #: No new requests are taken, while those that run go on.
        self.draining = False
        #: Adds up to Unix time with the monotonic time that the core sees.
        self.unix_offset_ns = time.time_ns() - time.monotonic_ns()
        self._links: dict[int, WorkerLink] = {}
        #: What tells the reader of a backlog that it has something to take.
        self.readers: dict[Backlog, Callable[[], None]] = {}
        self.pacer = Pacer()
        self._operations: dict[int, asyncio.Queue[OperationMessage]] = {}
        self._last_operation_id = 0
        self._listeners: list[Callable[[Notice], None]] = [self.rejoining.on_notice]
        self._closers: set[Callable[[], None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_due_ns = 0
        self._metrics: SchedulerMetrics | None = None

    def measure(self, metrics: SchedulerMetrics) -> None:
        """Tell ``metrics`` of every event, notice and refusal from now on."""
        self._metrics = metrics
        self.listen(metrics.on_notice)

    def listen(self, listener: Callable[[Notice], None]) -> None:
        """Call ``listener`` with everything that the core publishes; it must not block."""
        self._listeners.append(listener)

    def on_closing(self, closer: Callable[[], None]) -> Callable[[], None]:
        """Call ``closer`` once the daemon stops; returns how to take that back."""
        self._closers.add(closer)
        return lambda: self._closers.discard(closer)

    def apply(self, event: events.Event) -> None:
        """Let the core handle an event now."""
        if self._metrics is not None:
            self._metrics.on_event(event)
        self._execute(self.cluster.handle(event, time.monotonic_ns()))

    def open_backlog(self, wake: Callable[[], None]) -> Backlog:
        """A backlog for `submit`. Once there is something in it, ``wake`` is called, once until
        everything has been taken; it must not block."""
        backlog = Backlog()
        self.readers[backlog] = wake
        return backlog

    def close_backlog(self, backlog: Backlog) -> None:
        """The reader has gone away, or has taken all it wanted."""
        self.readers.pop(backlog, None)

    def submit(self, request: GenerationRequest, backlog: Backlog) -> Sequence:
        """Accept a request; raises the `AegaeonError` that refuses it."""
        (outcome,) = self.submit_all([request], backlog)
        if isinstance(outcome, AegaeonError):
            raise outcome
        return outcome

    def submit_all(
        self, requests: list[GenerationRequest], backlog: Backlog
    ) -> list[Sequence | AegaeonError]:
        """Accept requests that came together. Per request, in order: its sequence, or the error
        that refuses it."""
        if self.closing or self.draining:
            return [shutting_down() for _ in requests]
        outcomes, following = self.cluster.submit_all(requests, backlog, time.monotonic_ns())
        self._execute(following)
        if self._metrics is not None:
            for outcome in outcomes:
                if isinstance(outcome, AegaeonError):
                    self._metrics.on_refused(outcome)
        return outcomes

    def release(self, sequence: Sequence) -> None:
        """Nobody wants the rest of a sequence: free it wherever it is."""
        if not sequence.ended:
            self.apply(events.CancelRequested(sequence.sequence_id))

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence at its caller's wish; its reader still gets the end."""
        self.apply(events.CancelRequested(sequence.sequence_id))

    def caught_up(self, backlog: Backlog) -> None:
        """What a reader took has been written."""
        for sequence in list(backlog.paused.values()):
            if not sequence.unread:
                self.apply(events.ReaderCaughtUp(sequence.sequence_id))

    def connect(self, link: WorkerLink) -> None:
        """Send commands of the link's epoch to it from now on."""
        self._links[link.epoch] = link

    def begin_deploy(
        self, spec: ModelSpec, replica_count: int, node_ids: tuple[str, ...]
    ) -> tuple[int, asyncio.Queue[OperationMessage]]:
        """Start a deployment; its progress and result arrive in the queue."""
        operation_id, queue = self._open_operation()
        self.apply(events.DeployRequested(operation_id, spec, replica_count, node_ids))
        return operation_id, queue

    def begin_undeploy(
        self, name: str, node_ids: tuple[str, ...]
    ) -> tuple[int, asyncio.Queue[OperationMessage]]:
        """Start an undeployment; its result arrives in the queue."""
        operation_id, queue = self._open_operation()
        self.apply(events.UndeployRequested(operation_id, name, node_ids))
        return operation_id, queue

    def forget_operation(self, operation_id: int) -> None:
        """Nobody listens to an operation any more; it goes on all the same."""
        self._operations.pop(operation_id, None)

    def end_all(self) -> None:
        """Refuse new work, and end with SHUTTING_DOWN what somebody waits for."""
        self.closing = True
        self.rejoining.close(shutting_down())
        for sequence_id in list(self.cluster.state.sequences):
            self.apply(events.CancelRequested(sequence_id, shutting_down()))
        for queue in self._operations.values():
            queue.put_nowait(shutting_down())
        for closer in list(self._closers):
            closer()

    async def close(self) -> None:
        """Close every worker's stream."""
        if self._alarm is not None:
            self._alarm.cancel()
        for link in list(self._links.values()):
            await link.close()
        self._links.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _open_operation(self) -> tuple[int, asyncio.Queue[OperationMessage]]:
        if self.closing:
            raise shutting_down()
        self._last_operation_id += 1
        queue: asyncio.Queue[OperationMessage] = asyncio.Queue()
        self._operations[self._last_operation_id] = queue
        return self._last_operation_id, queue

    def _execute(self, following: list[commands.Command]) -> None:
        for command in following:
            match command:
                case commands.Deliver(backlogs=backlogs):
                    for backlog in backlogs:
                        wake = self.readers.get(backlog)
                        if wake is not None:
                            wake()
                case commands.Publish(notice=notice):
                    for listener in self._listeners:
                        listener(notice)
                case (
                    commands.DeployProgressed()
                    | commands.DeployFinished()
                    | commands.UndeployFinished()
                ):
                    queue = self._operations.get(command.operation_id)
                    if queue is not None:
                        queue.put_nowait(command)
                case commands.FenceWorker(epoch=epoch, reason=reason):
                    self._fence(epoch, reason)
                case commands.InspectModel():
                    self.spawn(self._inspect(command))
                case _:
                    link = self._links.get(command.epoch)
                    if link is not None:
                        link.send(command_message(command))
        self._rearm()

    def _fence(self, epoch: int, reason: str) -> None:
        link = self._links.pop(epoch, None)
        if link is not None:
            _log.warning("worker of epoch %d lost: %s", epoch, reason)
            self.spawn(link.close())

    async def _inspect(self, command: commands.InspectModel) -> None:
        link = self._links.get(command.epoch)
        try:
            if link is None:
                raise UnavailableError(
                    "the worker that was to read the model's files was lost; deploy again",
                    reason=ErrorReason.WORKER_LOST,
                )
            facts = await link.inspect(command.spec)
        except AegaeonError as error:
            self.apply(events.ModelInspected(command.operation_id, None, error))
        else:
            self.apply(events.ModelInspected(command.operation_id, facts, None))

    def spawn(self, coroutine: Any) -> None:
        """Run a coroutine to its end, or until the daemon closes."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _rearm(self) -> None:
        """Keep one timer, for whatever is due first."""
        due_ns = self.cluster.next_due_ns()
        if due_ns is None or (self._alarm is not None and due_ns == self._alarm_due_ns):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_due_ns = due_ns
        delay_s = max(due_ns - time.monotonic_ns(), 0) / 1e9
        self._alarm = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.apply(events.Tick())


def shutting_down() -> UnavailableError:
    """What everybody is told once the daemon stops."""
    return UnavailableError(
        "the scheduler is stopping; connect again once it is back",
        reason=ErrorReason.SHUTTING_DOWN,
    )
