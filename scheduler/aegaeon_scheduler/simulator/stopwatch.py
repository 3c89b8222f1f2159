"""How long a policy takes to decide."""

from __future__ import annotations

import time
from dataclasses import dataclass

from aegaeon_scheduler.core.commands import Command
from aegaeon_scheduler.core.events import Event, StepDone
from aegaeon_scheduler.simulator.controller import Controller
from aegaeon_scheduler.simulator.workload import Arrival


@dataclass(slots=True)
class Stopwatch:
    """A controller that measures another one's processor time."""

    _inner: Controller
    seconds: float = 0.0
    events: int = 0

    def submit(self, arrival: Arrival, now_ns: int) -> tuple[int, list[Command]]:
        """See `Controller`."""
        start = time.thread_time()
        answer = self._inner.submit(arrival, now_ns)
        self.seconds += time.thread_time() - start
        return answer

    def requests_of(self, step: StepDone) -> list[int]:
        """See `Controller`; not a decision."""
        return self._inner.requests_of(step)

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """See `Controller`."""
        start = time.thread_time()
        answer = self._inner.handle(event, now_ns)
        self.seconds += time.thread_time() - start
        self.events += 1
        return answer
