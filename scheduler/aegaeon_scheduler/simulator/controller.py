"""What drives simulated engines: the policy core, or a baseline with the same data types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.simulator.workload import Arrival


@dataclass(frozen=True, slots=True)
class HandOver:
    """Give a sequence to another engine, which reads its KV from host memory."""

    epoch: int
    handle: int
    target: int


SimulatedCommand = commands.Command | HandOver


class Controller(Protocol):
    """Plans turns: arrivals and events in, commands out."""

    def submit(self, arrival: Arrival, now_ns: int) -> tuple[int, list[SimulatedCommand]]:
        """Take in a request; returns its handle, 0 if it will never be served."""

    def handle(self, event: events.Event, now_ns: int) -> list[SimulatedCommand]:
        """Take in what happened on an engine."""
