"""The published quota of a round of turns."""

from __future__ import annotations

from collections.abc import Sequence as Numbers

#: Lower bound of the attainment parameter, as published.
_MIN_ALPHA = 0.5


def round_quotas(
    step_ns: Numbers[float],
    switch_ns: float,
    deadline_ns: Numbers[float],
    max_quota_ns: float,
) -> list[float]:
    """Quota in ns of each turn of a round, one per entry of ``step_ns`` and ``deadline_ns``.

    A turn with step time t meets n = deadline / t tokens per deadline. With the round's summed
    switch time c, alpha = max(c / (min n * Q_max) + sum 1/n, 0.5) is the inverse of the share of
    deadlines that the round can meet, and q = c / (n * (alpha - sum 1/n)) spends just the time
    needed for that share. No quota exceeds ``max_quota_ns``.
    """
    pace = [deadline / step for deadline, step in zip(deadline_ns, step_ns, strict=True)]
    load = sum(1.0 / n for n in pace)
    alpha = max(switch_ns / (min(pace) * max_quota_ns) + load, _MIN_ALPHA)
    if alpha <= load:  # switches are free: nothing is gained by long turns
        return [0.0 for _ in pace]
    return [switch_ns / (n * (alpha - load)) for n in pace]
