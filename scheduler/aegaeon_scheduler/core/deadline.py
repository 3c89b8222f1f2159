"""Turns by deadlines: what would be lost if a model waited for one more round decides."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.model_queue import ModelQueue
from aegaeon_scheduler.core.turns import Plan, fair_plan, waiting_models

#: Lateness counts up to so many quotas: beyond, a sequence gains nothing by being first.
_MAX_LATE_QUOTAS = 8


@dataclass(frozen=True, slots=True)
class DeadlineTurns:
    """Next is the model that would miss most deadlines per second of its steps by waiting.

    Token k of a sequence is due at arrival + TTFT + k * TPOT. A model's loss is the time for which
    its sequences, all together and weighted by priority, would be late after one more turn of every
    other model. When nothing would be late, the earliest deadline is next. A model that has waited
    `max_wait_ns` goes first whatever its loss, so that none starves past capacity.
    """

    max_quota_ns: int
    max_wait_ns: int

    def plan(self, engine: Engine, now_ns: int) -> Plan:
        """See `TurnPolicy`."""
        keys = {m: self._key(engine, engine.queues[m], now_ns) for m in waiting_models(engine)}
        order = sorted(keys, key=lambda model: (keys[model], model))
        return fair_plan(engine, order, "latest without a turn", self.max_quota_ns)

    def _key(self, engine: Engine, queue: ModelQueue, now_ns: int) -> tuple[int, float]:
        if now_ns - queue.since_ns >= self.max_wait_ns:
            return 0, queue.since_ns
        limit = now_ns + len(engine.queues) * self.max_quota_ns
        loss = queue.dues().lateness(limit, _MAX_LATE_QUOTAS * self.max_quota_ns)
        if loss:
            return 1, -loss / engine.step_ns(queue.model)
        return 2, queue.dues().earliest_ns
