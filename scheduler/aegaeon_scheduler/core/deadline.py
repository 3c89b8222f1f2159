"""Turns by deadlines: step by step while everything is on time, by what would be lost when not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aegaeon_scheduler.core import working_set
from aegaeon_scheduler.core.engine import Engine, Turn
from aegaeon_scheduler.core.model_queue import ModelQueue
from aegaeon_scheduler.core.turn_writer import DEPTH
from aegaeon_scheduler.core.turns import Plan, fair_plan, waiting_models
from aegaeon_scheduler.core.working_set import WorkingSet

#: Lateness counts up to so many quotas: beyond, a sequence gains nothing by being first.
_MAX_LATE_QUOTAS = 8
#: A turn's quota is left alone while it is right within this factor.
_TOLERANCE = 1.5


@dataclass(frozen=True, slots=True)
class DeadlineTurns:
    """Interleaves what fits the device while the rest can wait; else runs what would lose most.

    Token k of a sequence is due at arrival + TTFT + k * TPOT. While no model outside the working
    set is about to be late, the set's members take turns of a few steps, so that every gap between
    tokens stays below TPOT; a new model joins once its weights have been fetched beside them.

    When one is, the engine is crowded until all of its models fit again. Turns are long then, and
    next is the model that would miss most deadlines per second of its steps by waiting. Its loss is
    the time for which its sequences, all together and weighted by priority, would be late after one
    more turn of every other model. When nothing would be late, the earliest deadline is next. A
    model that has waited `max_wait_ns` goes first whatever its loss, so that none starves.
    """

    max_quota_ns: int
    max_wait_ns: int

    def plan(self, engine: Engine, now_ns: int) -> Plan:
        """See `TurnPolicy`."""
        found = working_set.choose(engine, now_ns)
        slack_ns = self._slack_ns(found, now_ns)
        if not found.outside or (slack_ns > 0 and not engine.crowded):
            return _interleave(engine, found, slack_ns, now_ns)
        keys = {m: self._key(engine, engine.queues[m], now_ns) for m in waiting_models(engine)}
        order = sorted(keys, key=lambda model: (keys[model], model))
        plan = fair_plan(engine, order, "latest without a turn", self.max_quota_ns)
        return replace(plan, crowded=True)

    def _slack_ns(self, found: WorkingSet, now_ns: int) -> int:
        """How long what is outside the working set can wait until turns have to be long."""
        slack_ns = self.max_wait_ns
        for place, queue in enumerate(found.outside, 1):
            # Those before it get a turn each, and so does what runs now.
            lead_ns = (place + 1) * self.max_quota_ns
            last_ns = min(queue.dues().earliest_ns - lead_ns, queue.since_ns + self.max_wait_ns)
            slack_ns = min(slack_ns, last_ns - now_ns)
        return slack_ns

    def _key(self, engine: Engine, queue: ModelQueue, now_ns: int) -> tuple[int, float]:
        if now_ns - queue.since_ns >= self.max_wait_ns:
            return 0, queue.since_ns
        limit = now_ns + len(engine.queues) * self.max_quota_ns
        loss = queue.dues().lateness(limit, _MAX_LATE_QUOTAS * self.max_quota_ns)
        if loss:
            return 1, -loss / engine.step_ns(queue.model)
        return 2, queue.dues().earliest_ns


def _interleave(engine: Engine, found: WorkingSet, slack_ns: int, now_ns: int) -> Plan:
    """Turns of a few steps for the members; the entrant's as soon as its weights are there."""
    members, entrant = found.members, found.entrant
    pending = entrant if len(members) and found.entrant_in_ns else None
    if entrant is not None and (pending is None or len(members) == 1):
        members.add(entrant)  # behind a lone member, whose turn lasts until the fetch has ended
    at_worker = [turn.model for turn in engine.turns]
    waiting = [q for q in members.queues if q.waiting and q.model not in at_worker]
    order = [q.model for q in sorted(waiting, key=lambda q: (q.since_ns, q.model))]
    following = [*at_worker, *order][:DEPTH]
    quotas = {turn.model: turn.quota_ns for turn in engine.turns}
    for queue in members.queues:
        if queue.model in following and len(members) > 1:
            quotas[queue.model] = _kept(quotas.get(queue.model, 0), members.turn_ns(queue))
        elif queue.model in following:
            alone_ns = _until(engine, queue.model, slack_ns, now_ns) if found.outside else 0
            quotas[queue.model] = alone_ns
    if pending is not None and following[1:] == [pending.model] and following[0] in quotas:
        quotas[following[0]] = _until(engine, following[0], found.entrant_in_ns, now_ns)
    return Plan(order, quotas, "all are on time", pending.model if pending else "")


def _until(engine: Engine, model: str, wait_ns: int, now_ns: int) -> int:
    """Quota with which a turn ends ``wait_ns`` from now."""
    turn = engine.turn_of(model)
    if turn is None:
        return wait_ns
    return _kept(turn.quota_ns, wait_ns + _elapsed_ns(turn, now_ns))


def _elapsed_ns(turn: Turn, now_ns: int) -> int:
    return now_ns - turn.started_ns if turn.started_ns >= 0 else 0


def _kept(quota_ns: int, wanted_ns: int) -> int:
    """The quota that is there, if it will do."""
    close = wanted_ns <= quota_ns * _TOLERANCE and quota_ns <= wanted_ns * _TOLERANCE
    return quota_ns if close else wanted_ns
