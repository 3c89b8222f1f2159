"""Quotas of turns that share an engine."""

from __future__ import annotations

from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.quota import round_quotas

#: A limited turn makes at least this many steps: switching for less would be mostly switching.
_MIN_STEPS = 4


def fair_quota_ns(engine: Engine, model: str, max_quota_ns: int) -> int:
    """Quota of ``model`` in a round of all models with work, by the published formula.

    At most ``max_quota_ns``, unless one switch or four steps take longer; at least 1. Every model
    counts with the shortest time per token that its sequences ask for.
    """
    models = sorted(engine.queues)
    estimate = engine.estimator
    quotas = round_quotas(
        [engine.step_ns(name) for name in models],
        sum(estimate.switch_ns(name) for name in models),
        [engine.queues[name].tpot_ns for name in models],
        max_quota_ns,
    )
    floor = max(_MIN_STEPS * engine.step_ns(model), estimate.switch_ns(model))
    quota = min(quotas[models.index(model)], max_quota_ns)
    return max(1, int(max(quota, floor)))
