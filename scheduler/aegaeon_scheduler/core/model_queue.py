"""Unfinished sequences of one model on one engine, and what they need together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aegaeon_scheduler.core.dues import Dues
from aegaeon_scheduler.core.sequence import Sequence


@dataclass(slots=True, eq=False)
class ModelQueue:
    """Unfinished sequences of one model on one engine that are in no turn."""

    model: str
    #: Runnable, oldest first.
    waiting: dict[int, Sequence] = field(default_factory=dict)
    #: Their readers are behind, or their KV is on its way here.
    paused: dict[int, Sequence] = field(default_factory=dict)
    #: Have the one token that a prefill turn gives, and are about to be handed off.
    handing: dict[int, Sequence] = field(default_factory=dict)
    #: Since when something has been waiting without a turn of the model.
    since_ns: int = 0
    #: Sequences in all: waiting, paused, handing, and members of turns.
    size: int = 0
    #: Turns in a row that ended without a step, though they had members.
    fruitless: int = 0
    #: A turn of it has been at the worker.
    begun: bool = False
    #: Device bytes of its weights, and of one token's KV.
    weight_bytes: int = 0
    kv_token_bytes: int = 0
    #: Tokens of all its sequences so far, prompts included.
    tokens: int = 0
    #: KV of all its sequences at full length, in bytes.
    full_kv_bytes: int = 0
    #: Shortest time per token that one of its sequences asks for, in ns.
    tpot_ns: int = 0
    _dues: Dues | None = None

    @property
    def runnable(self) -> int:
        """Sequences that are in a turn or wait for one."""
        return self.size - len(self.paused) - len(self.handing)

    @property
    def kv_bytes(self) -> int:
        """KV of all its sequences so far."""
        return self.tokens * self.kv_token_bytes

    def dues(self) -> Dues:
        """Deadlines of the waiting sequences, which must be at least one."""
        if self._dues is None:
            self._dues = Dues.of(self.waiting.values())
        return self._dues

    def wait(self, arrivals: dict[int, Sequence], now_ns: int) -> None:
        """Put sequences behind those that wait for a turn."""
        if not self.waiting:
            self.since_ns = now_ns
        self.waiting.update(arrivals)
        self._dues = None

    def wait_again(self, members: dict[int, Sequence], now_ns: int) -> None:
        """Put members of an ended turn ahead of those that had none."""
        self.waiting = {**members, **self.waiting}
        self.since_ns = now_ns
        self._dues = None

    def drop(self, handle: int) -> bool:
        """Take out a sequence that is in no turn; whether it was one."""
        if self.waiting.pop(handle, None) is not None:
            self._dues = None
            return True
        return any(place.pop(handle, None) is not None for place in (self.paused, self.handing))

    def draw(self, room: int) -> dict[int, Sequence]:
        """Take up to ``room`` waiting sequences: by priority, then oldest first."""
        if not self.waiting or room <= 0:
            return {}
        self._dues = None
        if len(self.waiting) <= room:
            drawn, self.waiting = self.waiting, {}
            return drawn
        chosen = sorted(self.waiting.values(), key=lambda s: -s.priority)[:room]  # stable
        return {s.handle: self.waiting.pop(s.handle) for s in chosen}

    def take(self, handles: Iterable[int]) -> dict[int, Sequence]:
        """Take those of these sequences that are waiting."""
        self._dues = None
        return {h: self.waiting.pop(h) for h in handles if h in self.waiting}

    def count(self, sequence: Sequence, sign: int) -> None:
        """Add a sequence to the totals, or take it out of them."""
        self.size += sign
        self.tokens += sign * (len(sequence.prompt) + len(sequence.generated))
        self.full_kv_bytes += sign * (sequence.pool_bytes - sequence.weight_bytes)
