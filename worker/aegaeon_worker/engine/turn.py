"""A turn as the engine sees it."""

from __future__ import annotations

from collections.abc import Iterable

from aegaeon_worker.engine.commands import QueueTurn


class Turn:
    """One model, its members in order of precedence, a quota.

    ``first_step_ns`` is set by the engine when the first step begins; the quota counts from there.
    """

    def __init__(self, command: QueueTurn, queued_ns: int) -> None:
        self.turn_id = command.turn_id
        self.model = command.model
        self.quota_ns = command.quota_ns
        self.prefetch_model = command.prefetch_model
        self.hands_off = command.hands_off
        self.on_device = command.on_device
        self.queued_ns = queued_ns
        self.first_step_ns: int | None = None
        self.steps = 0
        self.recomputed = 0
        self.unfetchable: set[str] = set()
        self._members: dict[int, None] = dict.fromkeys(command.handles)

    @property
    def members(self) -> list[int]:
        """Handles in order of precedence."""
        return list(self._members)

    def __contains__(self, handle: int) -> bool:
        return handle in self._members

    def join(self, handles: Iterable[int]) -> None:
        """Add members behind those there; a handle that is a member keeps its place."""
        for handle in handles:
            self._members.setdefault(handle)

    def leave(self, handles: Iterable[int]) -> None:
        """Take members out; others are ignored."""
        for handle in handles:
            self._members.pop(handle, None)

    def is_over_quota(self, now_ns: int) -> bool:
        """The quota, if any, has passed at ``now_ns``; never before the first step."""
        if not self.quota_ns or self.first_step_ns is None:
            return False
        return now_ns - self.first_step_ns >= self.quota_ns

    def elapsed_ns(self, now_ns: int) -> int:
        """Time since the first step began; 0 before it."""
        return 0 if self.first_step_ns is None else now_ns - self.first_step_ns
