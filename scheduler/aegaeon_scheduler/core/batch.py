"""Sequences of one model on one engine that run together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aegaeon_scheduler.core.engine import Turn
from aegaeon_scheduler.core.sequence import Sequence


@dataclass(slots=True, eq=False)
class Batch:
    """A policy's view of sequences whose places are in the engine's ledger."""

    model: str
    #: By handle.
    members: dict[int, Sequence]
    #: The worker has been told of some of its members in a turn.
    begun: bool = False
    #: While the worker has it.
    turn: Turn | None = None
    #: Sequences that have ever been in it.
    size: int = 0

    def add(self, sequence: Sequence) -> None:
        """Take in a sequence."""
        self.members[sequence.handle] = sequence
        self.size += 1

    def keep(self, handles: Iterable[int]) -> None:
        """Drop all members but these."""
        self.members = {handle: self.members[handle] for handle in handles}

    def kv_bytes(self) -> int:
        """KV of all members with their next token."""
        return sum(_kv_bytes(sequence) for sequence in self.members.values())

    def fits(self, other: Iterable[Sequence], pool_bytes: int, most: int) -> bool:
        """Whether a device pool, and a batch of ``most`` sequences, can take others as well."""
        more = list(other)
        if len(self.members) + len(more) > most:
            return False
        weights = max(s.weight_bytes for s in [*self.members.values(), *more])
        return self.kv_bytes() + sum(map(_kv_bytes, more)) + weights <= pool_bytes


def _kv_bytes(sequence: Sequence) -> int:
    return (len(sequence.prompt) + len(sequence.generated) + 1) * sequence.kv_token_bytes
