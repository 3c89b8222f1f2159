"""What drives simulated engines: the policy core, or a baseline with the same data types."""

from __future__ import annotations

from typing import Protocol

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.simulator.workload import Arrival


class Controller(Protocol):
    """Plans turns: arrivals and events in, commands out."""

    def submit(self, arrival: Arrival, now_ns: int) -> tuple[int, list[commands.Command]]:
        """Take in a request; returns its number, 0 if it will never be served."""

    def requests_of(self, step: events.StepDone) -> list[int]:
        """Numbers of the requests that got the tokens of a step, before it is handled."""

    def handle(self, event: events.Event, now_ns: int) -> list[commands.Command]:
        """Take in what happened on an engine."""
