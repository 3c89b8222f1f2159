"""The models of an engine that run step by step in turn, because the device holds all of them."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.model_queue import ModelQueue

#: Shares of the shortest time per token that one step of every member may take, and that one turn
#: of every member does: the rest is for prompts, and for what estimates miss.
_STEPS_SHARE = 0.8
_TURNS_SHARE = 0.7
#: Tokens of growth per sequence for which there must be room, and more of them for a new member.
_GROWTH_TOKENS = 16
_NEW_GROWTH_TOKENS = 256


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """What runs, what comes next, and what must wait."""

    #: Their weights are on the device; most recently planned first.
    members: list[ModelQueue]
    #: Finds room beside the members, and joins once its weights are there.
    entrant: ModelQueue | None
    #: When they are expected there, in ns from now.
    entrant_in_ns: int
    #: Find no room now, most urgent first.
    outside: list[ModelQueue]


def choose(engine: Engine, now_ns: int) -> WorkingSet:
    """Members are runnable models on the device, as far as they fit together step by step."""
    runnable = {name: q for name, q in engine.queues.items() if q.runnable}
    members: list[ModelQueue] = []
    for name in _recent(engine):
        queue = runnable.get(name)
        if queue is not None and fits(engine, members, queue):
            members.append(queue)
            del runnable[name]
    at_worker = [queue for name, queue in runnable.items() if engine.turn_of(name)]
    outside = sorted((q for q in runnable.values() if q.waiting), key=_urgency)
    entrant = next(iter(at_worker), None) or _entrant(engine, members, outside)
    if entrant in outside:
        outside.remove(entrant)
    wait_ns = _fetch_ns(engine, entrant, now_ns) if entrant is not None else 0
    return WorkingSet(members, entrant, wait_ns, outside)


def _entrant(
    engine: Engine, members: list[ModelQueue], outside: list[ModelQueue]
) -> ModelQueue | None:
    """The most urgent model that fits; the one whose fetch is under way, while it does."""
    ordered = sorted(outside, key=lambda queue: queue.model != engine.fetching)
    return next((queue for queue in ordered if fits(engine, members, queue)), None)


def fits(engine: Engine, members: list[ModelQueue], queue: ModelQueue) -> bool:
    """Whether a model finds room and time beside others; alone it always does."""
    if not members:
        return True
    models = [*members, queue]
    if sum(engine.step_ns(m.model) for m in models) > _STEPS_SHARE * _tpot_ns(models):
        return False
    device = engine.identity.device
    # KV that others left behind only gives way to a turn, and never to a fetch.
    held = sum(q.kv_bytes for q in engine.queues.values() if q.begun and q not in models)
    growth = _GROWTH_TOKENS if queue.begun else _NEW_GROWTH_TOKENS
    needed = sum(
        m.weight_bytes + (m.tokens + m.size * growth) * m.kv_token_bytes + 2 * device.chunk_bytes
        for m in models
    )
    return needed + held <= device.pool_bytes


def _tpot_ns(models: list[ModelQueue]) -> int:
    return min(queue.tpot_ns for queue in models)


def turn_ns(engine: Engine, models: list[ModelQueue], queue: ModelQueue) -> int:
    """Quota of a turn of ``queue``, so that between two tokens of each of the others there are no
    more than a round's turns of all the others and a step of its own; at least 1.
    """
    steps = [engine.step_ns(m.model) for m in models]
    each = (_TURNS_SHARE * _tpot_ns(models) - max(steps)) / (len(models) - 1)
    # A turn ends with the step in which its quota passes.
    return max(1, int(each - engine.step_ns(queue.model)))


def _recent(engine: Engine) -> list[str]:
    """The running model, then those on the device, last planned first."""
    running = [turn.model for turn in engine.turns[:1]]
    return list(dict.fromkeys([*running, *reversed(engine.on_device)]))


def _fetch_ns(engine: Engine, queue: ModelQueue, now_ns: int) -> int:
    """Time until a model's weights are on the device, if they are fetched from now on."""
    needed = int(engine.estimator.fetch_ns(queue.model))
    if engine.fetching != queue.model or engine.fetching_since_ns < 0:
        return max(1, needed)
    return max(0, engine.fetching_since_ns + needed - now_ns)


def _urgency(queue: ModelQueue) -> tuple[int, int, str]:
    dues = queue.dues()
    return -dues.priority, dues.earliest_ns, queue.model
