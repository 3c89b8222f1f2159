"""Queued turns in order, found by id."""

from __future__ import annotations

from collections import deque

from aegaeon_worker.engine.turn import Turn


class TurnQueue:
    """The running turn and those queued behind it."""

    def __init__(self) -> None:
        self._queued: deque[Turn] = deque()
        self.current: Turn | None = None

    def __bool__(self) -> bool:
        return self.current is not None or bool(self._queued)

    def add(self, turn: Turn) -> None:
        """Queue a turn behind the others."""
        self._queued.append(turn)

    def find(self, turn_id: int) -> Turn | None:
        """The turn of that id unless it has ended."""
        if self.current is not None and self.current.turn_id == turn_id:
            return self.current
        return next((turn for turn in self._queued if turn.turn_id == turn_id), None)

    def advance(self) -> Turn:
        """Make the next queued turn current; there must be one, and no current one."""
        assert self.current is None
        self.current = self._queued.popleft()
        return self.current

    def succeed(self) -> Turn:
        """Make the next queued turn current in place of the one that is; there must be one."""
        self.current = None
        return self.advance()

    @property
    def following(self) -> Turn | None:
        """The first queued turn."""
        return self._queued[0] if self._queued else None

    def clear(self) -> None:
        """Drop all of them."""
        self.current = None
        self._queued.clear()
