"""How fast requests end, so that one who is refused can be told when to come again."""

from __future__ import annotations

import math
from dataclasses import dataclass

_SECOND = 1_000_000_000
#: The rate is that of a stretch of so long, at least and at most, in ns.
_SHORTEST_NS = _SECOND
_LONGEST_NS = 10 * _SECOND
#: Bounds of what a caller is told, and what it is told while nothing is known, in ms.
_LEAST_MS = 100
_MOST_MS = 30_000
_UNKNOWN_MS = 1_000


@dataclass(slots=True)
class Pace:
    """Counts ends; measures their rate whenever somebody is refused."""

    #: Requests that have ended.
    ended: int = 0
    _since_ns: int = 0
    _ended_then: int = 0
    _per_s: float = 0.0
    #: Callers that were told to wait in this stretch.
    _refused: int = 0

    def retry_ms(self, now_ns: int) -> int:
        """When one more caller that is refused may find room: each in turn, so that they do not all
        come back together."""
        self._measure(now_ns)
        self._refused += 1
        if self._per_s <= 0:
            return _UNKNOWN_MS
        return min(max(math.ceil(1e3 * self._refused / self._per_s), _LEAST_MS), _MOST_MS)

    def _measure(self, now_ns: int) -> None:
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns < _SHORTEST_NS:
            return
        ended = self.ended - self._ended_then
        self._per_s = ended * 1e9 / elapsed_ns if elapsed_ns <= _LONGEST_NS else 0.0
        self._since_ns, self._ended_then, self._refused = now_ns, self.ended, 0
