"""Turn planning: what an engine runs now, next, and for how long.

While one model has work, its turn has no quota and arrivals join it. As soon as a second model has
work, the next turn is queued behind the current one, so that the worker never waits for the
scheduler between turns; a policy says which, and when the current one ends for it.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

from aegaeon_scheduler.core.assignment import EnginePolicy
from aegaeon_scheduler.core.batch import Batch
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.fair_quota import fair_quota_ns
from aegaeon_scheduler.core.outbox import Outbox
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.turn_writer import DEPTH, TurnWriter


@dataclass(frozen=True, slots=True)
class Plan:
    """What an engine is to do next."""

    #: Models that wait for a turn and have none at the worker, next one first.
    order: list[str]
    #: Quota in ns by model, 0 for none, of the turns at the worker and of those that come next.
    quotas: dict[str, int]
    #: Why, for those who watch the turns.
    reason: str
    #: The model whose weights are to be fetched while the turns run.
    prefetch: str = ""
    #: Kept at the engine for the next plan.
    crowded: bool = False


class TurnPolicy(Protocol):
    """Chooses the next models of an engine, and their quotas."""

    def plan(self, engine: Engine, now_ns: int) -> Plan:
        """What the engine is to do next."""


def waiting_models(engine: Engine) -> list[str]:
    """Models that wait for a turn and have none at the worker."""
    at_worker = {turn.model for turn in engine.turns}
    return [m for m, queue in engine.queues.items() if queue.waiting and m not in at_worker]


def longest_waiting(engine: Engine) -> list[str]:
    """As `waiting_models`, those first that have waited longest."""
    return sorted(waiting_models(engine), key=lambda m: (engine.queues[m].since_ns, m))


def fair_plan(engine: Engine, order: list[str], reason: str, max_quota_ns: int) -> Plan:
    """Turns in order with quotas by the published formula; one that has a quota keeps it."""
    quotas = {turn.model: turn.quota_ns for turn in engine.turns}
    quotas.update(dict.fromkeys(order[: DEPTH - len(engine.turns)], 0))
    for model, quota in quotas.items():
        if not engine.contested(model):
            quotas[model] = 0
        elif not quota and model in engine.queues:  # else the turn has nobody left
            quotas[model] = fair_quota_ns(engine, model, max_quota_ns)
    models = list(quotas)
    # With nobody else waiting, what follows a limited turn is the one before it again.
    following = order[DEPTH - len(engine.turns) :] or models[:1]
    return Plan(order, quotas, reason, following[0] if following else "")


@dataclass(frozen=True, slots=True)
class RoundRobinTurns:
    """Models in turn, longest waiting first; quotas by the published formula."""

    max_quota_ns: int

    def plan(self, engine: Engine, now_ns: int) -> Plan:
        """See `TurnPolicy`; quotas of at most `max_quota_ns`, or one switch, or four steps."""
        return fair_plan(engine, longest_waiting(engine), "longest waiting", self.max_quota_ns)


@dataclass(slots=True)
class TurnPlanner:
    """Keeps every engine's two turns filled by a policy."""

    policy: TurnPolicy
    assignment: EnginePolicy
    _writer: TurnWriter = field(default_factory=TurnWriter)

    def choose(self, engines: Items[Engine], sequence: Sequence) -> Engine:
        """See `Planner`."""
        return self.assignment.choose(engines, sequence)

    def batches(self, engine: Engine) -> list[Batch]:
        """See `Planner`: all sequences of a model are one batch."""
        named = {turn.model for turn in engine.turns}
        return [
            Batch(
                model,
                {h: s for h, s in engine.sequences.items() if s.model == model},
                queue.begun or model in named,
            )
            for model, queue in engine.queues.items()
        ]

    def forget(self, engine: Engine) -> None:
        """See `Planner`; nothing is kept about engines."""

    def replan(self, engine: Engine, now_ns: int, out: Outbox) -> None:
        """See `Planner`."""
        if not engine.ready:
            return
        for turn in engine.turns:
            room = engine.identity.max_batch_sequences - len(turn.members)
            self._writer.join(engine, turn, engine.draw(turn.model, room), out)
        plan = self.policy.plan(engine, now_ns)
        # Queue first: a turn that is limited may end at once, and the next one must be there.
        for model in plan.order[: DEPTH - len(engine.turns)]:
            self._queue(engine, model, plan, out)
        for turn in engine.turns:
            self._writer.limit(engine, turn, plan.quotas[turn.model], out)
        engine.want(plan.prefetch, now_ns)
        engine.crowded = plan.crowded

    def _queue(self, engine: Engine, model: str, plan: Plan, out: Outbox) -> None:
        members = engine.draw(model, engine.identity.max_batch_sequences)
        reason = plan.reason if engine.contested(model) else "only model with work"
        hint = plan.prefetch if plan.prefetch != model else ""
        self._writer.queue(engine, model, members, plan.quotas[model], hint, reason, out)
