"""Sequences whose KV is on its way from other nodes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from aegaeon_worker.kv.arrival import Arrival
from aegaeon_worker.kv.tracked import SequenceEntry, SequenceTable

#: Transfers at once from one worker: one fills the wire, a second one hides the pauses between two.
_MOST_FROM_ONE = 2
#: From all workers together, so that one that hangs holds up its own alone.
_MOST_AT_ONCE = 8

Carry = Callable[[Arrival], None]
"""Begins to bring KV to its blocks, on another thread; ``Fetches.ended`` is to follow."""


@dataclass(frozen=True)
class Fetched:
    """KV is in this worker's slabs: of the first ``num_tokens`` tokens, perhaps of none.

    ``nbytes`` have come in ``transfer_ns``, with so many interruptions. What another worker of the
    node offered is on the device; or it has not come that way, and ``refusal`` says why.
    """

    sequence: int
    num_tokens: int = 0
    nbytes: int = 0
    transfer_ns: int = 0
    interruptions: int = 0
    refusal: str = ""


class Fetches:
    """Has KV brought from other nodes to own slabs, a few sequences at a time.

    Blocks belong to their sequence from the moment that its transfer begins, like the host copy of
    any other. Whole blocks that have come are good even if the others have not.
    """

    def __init__(self, table: SequenceTable, carry: Carry | None) -> None:
        """Without ``carry``, nothing comes and all of it is computed."""
        self._table = table
        self._carry = carry
        self._waiting: deque[tuple[SequenceEntry, Arrival]] = deque()
        self._running: dict[Arrival, SequenceEntry] = {}
        self._outcomes: list[tuple[SequenceEntry, Fetched]] = []

    def begin(self, entry: SequenceEntry) -> None:
        """Have a new sequence's KV fetched, if it is on another node."""
        if entry.kv.arrival is not None:
            self._waiting.append((entry, entry.kv.arrival))
            self._start()

    def ended(self, arrival: Arrival, transfer_ns: int, interruptions: int) -> None:
        """A transfer is over, however it went, and writes no more."""
        entry = self._running.pop(arrival, None)
        if entry is not None:  # else it was begun for an engine that has been replaced
            self._conclude(entry, arrival, transfer_ns, interruptions)
        self._start()

    def take_outcomes(self) -> list[Fetched]:
        """Fetches that have ended since the last call, but not those of sequences that have."""
        outcomes, self._outcomes = self._outcomes, []
        return [fetched for entry, fetched in outcomes if self._lives(entry)]

    def _start(self) -> None:
        while (found := self._next()) is not None:
            entry, arrival = found
            if self._carry is None or not self._make_room(entry, arrival):
                arrival.close()
                self._conclude(entry, arrival, 0, 0)
                continue
            self._running[arrival] = entry
            self._carry(arrival)

    def _next(self) -> tuple[SequenceEntry, Arrival] | None:
        """The first that waits for a worker from which another transfer may come; forgets those
        before it that have ended.
        """
        self._waiting = deque(item for item in self._waiting if self._lives(item[0]))
        if len(self._running) >= _MOST_AT_ONCE:
            return None
        busy = Counter(arrival.place.address for arrival in self._running)
        for item in self._waiting:
            if busy[item[1].place.address] < _MOST_FROM_ONE:
                self._waiting.remove(item)
                return item
        return None

    def _make_room(self, entry: SequenceEntry, arrival: Arrival) -> bool:
        """Give the arrival its blocks, unless a turn did not wait for it."""
        if arrival.closed:
            return False
        imports = entry.model.kv.imports
        return self._table.take_room(entry, lambda: imports.open(entry.kv, arrival))

    def _conclude(
        self, entry: SequenceEntry, arrival: Arrival, transfer_ns: int, interruptions: int
    ) -> None:
        if not self._lives(entry):
            return
        tokens = 0
        if entry.kv.arrival is arrival:
            tokens = entry.model.kv.imports.keep(entry.kv, arrival)
        fetched = Fetched(entry.sequence, tokens, arrival.received, transfer_ns, interruptions)
        self._outcomes.append((entry, fetched))

    def _lives(self, entry: SequenceEntry) -> bool:
        """Whether it has not ended; another sequence of its number may exist by now."""
        return self._table.get(entry.sequence) is entry
