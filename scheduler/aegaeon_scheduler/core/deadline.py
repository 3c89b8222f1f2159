"""Turns by deadlines: what would be lost if a model waited for one more round decides."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_scheduler.core.engine import Engine, ModelQueue
from aegaeon_scheduler.core.fair_quota import fair_quota_ns

#: Lateness counts up to so many quotas: beyond, a sequence gains nothing by being first.
_MAX_LATE_QUOTAS = 8


@dataclass(frozen=True, slots=True)
class DeadlineTurns:
    """Next is the model that would miss most deadlines per second of its steps by waiting.

    Token k of a sequence is due at arrival + TTFT + k * TPOT. A model's loss is the time for which
    its sequences, all together, would be late after one more turn of every other model. When
    nothing would be late, the earliest deadline is next. A model that has waited `max_wait_ns`
    goes first whatever its loss, so that none starves past capacity.
    """

    ttft_slo_ns: int
    tpot_slo_ns: int
    max_quota_ns: int
    max_wait_ns: int

    def order(self, engine: Engine, now_ns: int) -> list[str]:
        """See `TurnPolicy`."""
        ready = [
            (self._key(engine, queue, now_ns), model)
            for model, queue in engine.queues.items()
            if queue.waiting and engine.turn_of(model) is None
        ]
        return [model for _, model in sorted(ready)]

    def quota_ns(self, engine: Engine, model: str, now_ns: int) -> int:
        """See `TurnPolicy`."""
        return fair_quota_ns(engine, model, self.tpot_slo_ns, self.max_quota_ns)

    def _key(self, engine: Engine, queue: ModelQueue, now_ns: int) -> tuple[int, float]:
        if now_ns - queue.since_ns >= self.max_wait_ns:
            return 0, queue.since_ns
        limit = now_ns + len(engine.queues) * self.max_quota_ns
        dues = [
            sequence.arrival_ns + self.ttft_slo_ns + len(sequence.generated) * self.tpot_slo_ns
            for sequence in queue.waiting.values()
        ]
        most = _MAX_LATE_QUOTAS * self.max_quota_ns
        loss = sum(min(limit - due, most) for due in dues if due < limit)
        if loss:
            return 1, -loss / engine.estimator.step_ns(queue.model)
        return 2, min(dues)
