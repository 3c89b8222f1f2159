"""How much per minute: a bucket that fills evenly and holds a minute's worth."""

from __future__ import annotations

_MINUTE_S = 60.0


class Rate:
    """Takes ``per_minute`` units in any minute, and what has been saved up to one minute before.

    The level may go below nothing by what was not known when it was taken (generated tokens); until
    that has been made up for, nothing more is given. Times in seconds, of a clock that only grows.
    """

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at_s = now_s

    def wait_s(self, amount: int, now_s: float) -> float:
        """Time until ``amount`` can be taken; 0 when it can be now. More than the bucket ever
        holds is given when it is full."""
        self._fill(now_s)
        missing = min(amount, self.per_minute) - self._level
        return max(0.0, missing * _MINUTE_S / self.per_minute)

    def take(self, amount: int, now_s: float) -> None:
        """Take it, whatever is there."""
        self._fill(now_s)
        self._level -= amount

    def is_full(self, now_s: float) -> bool:
        """Whether it holds a minute's worth, as a new one does."""
        self._fill(now_s)
        return self._level == self.per_minute

    def _fill(self, now_s: float) -> None:
        gained = (now_s - self._at_s) * self.per_minute / _MINUTE_S
        self._level = min(float(self.per_minute), self._level + gained)
        self._at_s = now_s
