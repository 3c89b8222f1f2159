"""The models of an engine that run step by step in turn, because the device holds all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.model_queue import ModelQueue

#: Shares of the shortest time per token that one step of every member may take, and that one turn
#: of every member does: the rest is for prompts, and for what estimates miss.
_STEPS_SHARE = 0.8
_TURNS_SHARE = 0.7
#: Tokens of growth per sequence for which there must be room, and more of them for a new member.
_GROWTH_TOKENS = 16
_NEW_GROWTH_TOKENS = 256


@dataclass(slots=True, eq=False)
class Members:
    """Models that take turns of a few steps, and what they need together."""

    engine: Engine
    #: KV on the device that belongs to none of them: it gives way to a turn, but not to a fetch.
    _left_bytes: int
    queues: list[ModelQueue] = field(default_factory=list)
    _steps: list[float] = field(default_factory=list)
    _tpot_ns: int = 0
    _bytes: int = 0
    #: Bytes that one more token of every sequence takes.
    _token_bytes: int = 0

    def __len__(self) -> int:
        return len(self.queues)

    def takes(self, queue: ModelQueue) -> bool:
        """Whether a model finds room and time beside the members; alone it always does."""
        if not self.queues:
            return True
        tpot_ns = min(self._tpot_ns, queue.tpot_ns)
        step_ns = self.engine.step_ns(queue.model)
        if sum(self._steps) + step_ns > _STEPS_SHARE * tpot_ns:
            return False
        growth = _GROWTH_TOKENS if queue.begun else _NEW_GROWTH_TOKENS
        left_bytes = self._left_bytes - (queue.kv_bytes if queue.begun else 0)
        token_bytes = self._token_bytes + queue.size * queue.kv_token_bytes
        needed = self._bytes + self._own_bytes(queue) + growth * token_bytes + left_bytes
        return needed <= self.engine.identity.device.pool_bytes

    def add(self, queue: ModelQueue) -> None:
        """Take in a model."""
        self._tpot_ns = min(self._tpot_ns, queue.tpot_ns) if self.queues else queue.tpot_ns
        self.queues.append(queue)
        self._steps.append(self.engine.step_ns(queue.model))
        self._left_bytes -= queue.kv_bytes if queue.begun else 0
        self._bytes += self._own_bytes(queue)
        self._token_bytes += queue.size * queue.kv_token_bytes

    def turn_ns(self, queue: ModelQueue) -> int:
        """Quota of a member's turn beside others, so that between two tokens of each of them there
        are no more than one turn of all the others and a step of its own; at least 1.
        """
        each = (_TURNS_SHARE * self._tpot_ns - max(self._steps)) / (len(self.queues) - 1)
        # A turn ends with the step in which its quota passes.
        return max(1, int(each - self._steps[self.queues.index(queue)]))

    def _own_bytes(self, queue: ModelQueue) -> int:
        # Weights and KV begin a chunk each.
        return queue.weight_bytes + queue.kv_bytes + 2 * self.engine.identity.device.chunk_bytes


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """What runs, what comes next, and what must wait."""

    #: Their weights are on the device; most recently planned first.
    members: Members
    #: Finds room beside the members, and joins once its weights are there.
    entrant: ModelQueue | None
    #: When they are expected there, in ns from now.
    entrant_in_ns: int
    #: Find no room now, most urgent first.
    outside: list[ModelQueue]


def choose(engine: Engine, now_ns: int) -> WorkingSet:
    """Members are runnable models on the device, as far as they fit together step by step."""
    runnable = {name: q for name, q in engine.queues.items() if q.runnable}
    members = Members(engine, sum(q.kv_bytes for q in engine.queues.values() if q.begun))
    for name in _recent(engine):
        queue = runnable.get(name)
        if queue is not None and members.takes(queue):
            members.add(queue)
            del runnable[name]
    at_worker = [runnable[turn.model] for turn in engine.turns if turn.model in runnable]
    outside = sorted((q for q in runnable.values() if q.waiting), key=_urgency)
    entrant = at_worker[0] if at_worker else _entrant(members, outside)
    if entrant in outside:
        outside.remove(entrant)
    wait_ns = _fetch_ns(engine, entrant, now_ns) if entrant is not None else 0
    return WorkingSet(members, entrant, wait_ns, outside)


def _entrant(members: Members, outside: list[ModelQueue]) -> ModelQueue | None:
    """The most urgent model that fits; the one whose fetch is under way, while it does."""
    fetching = members.engine.fetching
    ordered = sorted(outside, key=lambda queue: queue.model != fetching)
    return next((queue for queue in ordered if members.takes(queue)), None)


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
