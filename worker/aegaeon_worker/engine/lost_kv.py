"""Sequences that lost their KV, and what a turn owes them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from aegaeon_worker.engine.sequence import Sequence


class LostKv:
    """Where memory is short, a sequence may lose its KV after every turn, and a quota may end each
    turn before it is computed again. So that it gets on all the same, a turn lasts until the first
    member that came without its KV has its next token, as long as it gets on.
    """

    def __init__(self) -> None:
        self._handles: set[int] = set()
        self._owed: Sequence | None = None
        self._computed = -1

    def add(self, handles: Iterable[int]) -> None:
        """They lost their KV."""
        self._handles.update(handles)

    def settle(self, handles: Iterable[int]) -> None:
        """They have got a token, or have left."""
        self._handles.difference_update(handles)

    def begin_turn(self, members: Seq[Sequence]) -> None:
        """A turn begins."""
        self._owed = next((s for s in members if s.handle in self._handles), None)
        self._computed = -1

    def owes(self) -> bool:
        """Whether the turn is to go on beyond its quota; to be asked once per step."""
        owed = self._owed
        if owed is None or owed.handle not in self._handles or owed.num_computed <= self._computed:
            self._owed = None
            return False
        self._computed = owed.num_computed
        return True
