"""A request as the baselines see it."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_scheduler.core.commands import AddSequence
from aegaeon_scheduler.core.values import StopConditions
from aegaeon_scheduler.simulator.catalog import ModelShape
from aegaeon_scheduler.simulator.workload import Arrival


@dataclass(slots=True, eq=False)
class Ticket:
    """One request under its handle, and how many tokens it has produced."""

    handle: int
    arrival: Arrival
    shape: ModelShape
    tokens: int = 0

    @property
    def kv_bytes(self) -> int:
        """KV of its prompt and of what it has produced."""
        return (self.arrival.input_tokens + self.tokens + 1) * self.shape.kv_token_bytes


def add_sequence(epoch: int, ticket: Ticket) -> AddSequence:
    """The command that makes a request known to an engine."""
    stop = StopConditions(ticket.arrival.output_tokens, 0, (), (), True, 1 << 20)
    prompt = bytes(ticket.arrival.input_tokens)
    return AddSequence(epoch, ticket.handle, ticket.arrival.model, prompt, (), stop)
