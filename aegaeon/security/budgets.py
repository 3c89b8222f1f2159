"""What holders of keys have left of what they may use per minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aegaeon.errors import ErrorReason, ResourceExhaustedError
from aegaeon.security.rate import Rate

#: Buckets at which full ones, which say nothing, are looked for and dropped.
_MANY = 4_096
#: Buckets at most: beyond, the oldest is dropped whatever it says.
_MOST = 65_536


@dataclass(frozen=True)
class Budget:
    """What a holder may use; a limit of None or 0 is none."""

    #: Tells it from all others.
    holder: str
    #: For people.
    name: str
    requests_per_minute: int | None
    tokens_per_minute: int | None


class Budgets:
    """A bucket per holder and limit; one whose number changes starts full. Belongs to one event
    loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rates: dict[tuple[str, str, int], Rate] = {}
        self._look_at = _MANY

    def __len__(self) -> int:
        return len(self._rates)

    def take(self, budget: Budget, requests: int, tokens: int) -> None:
        """Take both or nothing. Raises ResourceExhaustedError, which says when to come again."""
        now = self._clock()
        wanted = self._wanted(budget, requests, tokens, now)
        for limit, (rate, amount) in wanted.items():
            wait_s = rate.wait_s(amount, now)
            if wait_s > 0:
                raise used_up(budget.name, limit, rate.per_minute, wait_s)
        for rate, amount in wanted.values():
            rate.take(amount, now)

    def owe(self, budget: Budget, requests: int, tokens: int) -> None:
        """Take both, whatever is left."""
        now = self._clock()
        for rate, amount in self._wanted(budget, requests, tokens, now).values():
            rate.take(amount, now)

    def _wanted(
        self, budget: Budget, requests: int, tokens: int, now: float
    ) -> Mapping[str, tuple[Rate, int]]:
        limits = {
            "requests_per_minute": (budget.requests_per_minute, requests),
            "tokens_per_minute": (budget.tokens_per_minute, tokens),
        }
        return {
            limit: (self._rate(budget.holder, limit, per_minute, now), amount)
            for limit, (per_minute, amount) in limits.items()
            if per_minute
        }

    def _rate(self, holder: str, limit: str, per_minute: int, now: float) -> Rate:
        place = (holder, limit, per_minute)
        rate = self._rates.get(place)
        if rate is None:
            self._make_room(now)
            rate = self._rates[place] = Rate(per_minute, now)
        return rate

    def _make_room(self, now: float) -> None:
        if len(self._rates) >= self._look_at:
            kept = {place: rate for place, rate in self._rates.items() if not rate.is_full(now)}
            self._rates = kept
            # Looking at all of them again after a few would take its time for nothing.
            self._look_at = max(_MANY, 2 * len(kept))
        if len(self._rates) >= _MOST:
            del self._rates[next(iter(self._rates))]


def used_up(name: str, limit: str, value: int, wait_s: float) -> ResourceExhaustedError:
    """The error for a limit of which too little is left."""
    return ResourceExhaustedError(
        f"the key {name!r} has used up its {value} {limit.replace('_', ' ')}; try again in "
        f"{wait_s:.1f} s",
        reason=ErrorReason.QUEUE_FULL,
        metadata={"limit": limit, "value": value, "retry_after_ms": max(1, round(wait_s * 1000))},
    )
