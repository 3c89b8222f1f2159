"""Turn planning: what an engine runs now, next, and for how long.

While one model has work, its turn has no quota and arrivals join it. As soon as a second model has
work, the current turn is limited and the next one is queued behind it, so that the worker never
waits for the scheduler between turns. No model waits longer than the quotas and switches of the
others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from aegaeon_scheduler.core.commands import JoinTurn, LimitTurn, QueueTurn
from aegaeon_scheduler.core.engine import Engine, Turn
from aegaeon_scheduler.core.fair_quota import fair_quota_ns
from aegaeon_scheduler.core.notices import TurnChange, TurnChanged
from aegaeon_scheduler.core.outbox import Outbox

#: Turns at a worker: the running one, and the one queued behind it.
_DEPTH = 2


class TurnPolicy(Protocol):
    """Chooses the next model of an engine, and its quota."""

    def order(self, engine: Engine, now_ns: int) -> list[str]:
        """Models that wait for a turn and have none at the worker, next one first."""

    def quota_ns(self, engine: Engine, model: str, now_ns: int) -> int:
        """Quota of a turn of ``model`` while others wait; at least 1."""


@dataclass(frozen=True, slots=True)
class RoundRobinTurns:
    """Models in turn, longest waiting first; quotas by the published formula."""

    tpot_slo_ns: int
    max_quota_ns: int

    def order(self, engine: Engine, now_ns: int) -> list[str]:
        """See `TurnPolicy`."""
        ready = [
            (queue.since_ns, model)
            for model, queue in engine.queues.items()
            if queue.waiting and engine.turn_of(model) is None
        ]
        return [model for _, model in sorted(ready)]

    def quota_ns(self, engine: Engine, model: str, now_ns: int) -> int:
        """See `TurnPolicy`; at most `max_quota_ns`, unless one switch or four steps take longer."""
        return fair_quota_ns(engine, model, self.tpot_slo_ns, self.max_quota_ns)


@dataclass(slots=True)
class TurnPlanner:
    """Keeps every engine's two turns filled by a policy."""

    policy: TurnPolicy
    _last_turn_id: int = 0

    def replan(self, engine: Engine, now_ns: int, out: Outbox) -> None:
        """Bring the worker's turns up to date with what waits now."""
        if not engine.ready:
            return
        for turn in engine.turns:
            self._join(engine, turn, out)
        order = self.policy.order(engine, now_ns)
        while len(engine.turns) < _DEPTH and order:
            self._queue(engine, order, now_ns, out)
        for turn in engine.turns:
            self._limit(engine, turn, now_ns, out)

    def _join(self, engine: Engine, turn: Turn, out: Outbox) -> None:
        room = engine.identity.max_batch_sequences - len(turn.members)
        drawn = engine.draw(turn.model, room)
        if drawn:
            turn.members.update(drawn)
            out.add(JoinTurn(engine.epoch, turn.turn_id, tuple(drawn)))

    def _queue(self, engine: Engine, order: list[str], now_ns: int, out: Outbox) -> None:
        model = order.pop(0)
        members = engine.draw(model, engine.identity.max_batch_sequences)
        quota = self.policy.quota_ns(engine, model, now_ns) if engine.contested(model) else 0
        self._last_turn_id += 1
        turn = Turn(self._last_turn_id, model, quota, members)
        # With nobody else waiting, what follows a limited turn is the one before it again.
        follower = order[0] if order else (engine.turns[0].model if engine.turns else "")
        engine.turns.append(turn)
        out.add(QueueTurn(engine.epoch, turn.turn_id, model, tuple(members), quota, follower))
        out.publish(
            TurnChanged(
                engine.engine_id,
                turn.turn_id,
                model,
                TurnChange.QUEUED,
                len(members),
                quota,
                reason="longest waiting" if quota else "only model with work",
            )
        )

    def _limit(self, engine: Engine, turn: Turn, now_ns: int, out: Outbox) -> None:
        contested = engine.contested(turn.model)
        if contested == (turn.quota_ns > 0):
            return
        turn.quota_ns = self.policy.quota_ns(engine, turn.model, now_ns) if contested else 0
        out.add(LimitTurn(engine.epoch, turn.turn_id, turn.quota_ns))
