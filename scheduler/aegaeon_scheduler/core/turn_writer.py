"""Turns as commands for workers and as notices for those who watch."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_scheduler.core.commands import JoinTurn, LimitTurn, QueueTurn
from aegaeon_scheduler.core.engine import Engine, Turn
from aegaeon_scheduler.core.notices import TurnChange, TurnChanged
from aegaeon_scheduler.core.outbox import Outbox
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import TurnStage

#: Turns at a worker: the running one, and the one queued behind it.
DEPTH = 2


@dataclass(slots=True)
class TurnWriter:
    """Numbers turns, and keeps the engine's ledger and its worker in step."""

    _last_turn_id: int = 0

    def queue(
        self,
        engine: Engine,
        model: str,
        members: dict[int, Sequence],
        quota_ns: int,
        prefetch: str,
        reason: str,
        out: Outbox,
        first_token_only: bool = False,
    ) -> Turn:
        """Queue a turn of sequences that were drawn for it."""
        self._last_turn_id += 1
        stage = stage_of(engine, model)
        turn = Turn(
            self._last_turn_id,
            model,
            quota_ns,
            members,
            prefetch,
            stage=stage,
            first_token_only=first_token_only or stage is TurnStage.PREFILL,
        )
        engine.turns.append(turn)
        handles = tuple(members)
        on_device = stage is TurnStage.PREFILL and not engine.offer_obstacles[model]
        out.add(
            QueueTurn(
                engine.epoch, turn.turn_id, model, handles, quota_ns, prefetch, stage, on_device
            )
        )
        out.publish(
            TurnChanged(
                engine.engine_id,
                turn.turn_id,
                model,
                TurnChange.QUEUED,
                len(members),
                quota_ns,
                reason=reason,
                stage=stage,
                expected_step_ns=engine.step_ns(model),
            )
        )
        return turn

    @staticmethod
    def join(engine: Engine, turn: Turn, members: dict[int, Sequence], out: Outbox) -> None:
        """Add sequences that were drawn for a turn."""
        if members:
            turn.members.update(members)
            out.add(JoinTurn(engine.epoch, turn.turn_id, tuple(members)))

    @staticmethod
    def limit(engine: Engine, turn: Turn, quota_ns: int, out: Outbox) -> None:
        """Change a turn's quota, if it is another one."""
        if turn.stage is not stage_of(engine, turn.model):
            quota_ns = 1  # decode engines came or went: what it has left goes into another turn
        if quota_ns != turn.quota_ns:
            turn.quota_ns = quota_ns
            out.add(LimitTurn(engine.epoch, turn.turn_id, quota_ns))


def stage_of(engine: Engine, model: str) -> TurnStage:
    """How far a turn of a model goes on an engine."""
    return TurnStage.PREFILL if model in engine.hands_off else TurnStage.WHOLE
