"""The ledger of one engine: which sequences it has, and in which of its turns they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aegaeon.capability import Capabilities
from aegaeon.errors import AegaeonError
from aegaeon_scheduler.core.estimation.estimator import Estimator
from aegaeon_scheduler.core.model_queue import ModelQueue
from aegaeon_scheduler.core.prefix_places import PrefixPlace
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import EngineRole, TurnStage, WorkerIdentity, WorkerMemory


@dataclass(slots=True, eq=False)
class Turn:
    """A turn that the worker has: running when it is the engine's first, else queued."""

    turn_id: int
    model: str
    quota_ns: int
    members: dict[int, Sequence]
    #: The model whose weights are fetched while it runs.
    prefetch: str = ""
    #: When its first step began, in ns; -1 before.
    started_ns: int = -1
    steps: int = 0
    stage: TurnStage = TurnStage.WHOLE
    #: Members leave with their first token: handed off by the worker, or taken out to decode later.
    first_token_only: bool = False


@dataclass(slots=True, eq=False)
class Engine:
    """One registration of a worker, from its first call until it is lost."""

    epoch: int
    identity: WorkerIdentity
    #: Times of its kind of device.
    estimator: Estimator
    #: Its command stream is open.
    ready: bool = False
    #: Since when it is to be stopped, in ns; -1 otherwise.
    draining_since_ns: int = -1
    #: Models that can run.
    loaded: set[str] = field(default_factory=set)
    #: Asked to load, not answered.
    loading: set[str] = field(default_factory=set)
    #: Asked to unload, not answered.
    unloading: set[str] = field(default_factory=set)
    #: Could not load, and why.
    refused: dict[str, AegaeonError] = field(default_factory=dict)
    #: Every unfinished sequence, by handle.
    sequences: dict[int, Sequence] = field(default_factory=dict)
    #: Models of sequences that were cancelled and have not been confirmed ended, by handle.
    ending: dict[int, str] = field(default_factory=dict)
    #: Went on to another engine, and their KV is held for them, by the handle they had here.
    held: dict[int, Sequence] = field(default_factory=dict)
    #: Models whose sequences leave for another engine after their first token.
    hands_off: set[str] = field(default_factory=set)
    #: Why it does not offer their KV on its device, see `device_offers`; empty for those it does.
    offer_obstacles: dict[str, str] = field(default_factory=dict)
    queues: dict[str, ModelQueue] = field(default_factory=dict)
    #: At most two: the running one, and the one queued behind it.
    turns: list[Turn] = field(default_factory=list)
    #: Models whose weights are expected on the device, with bytes, least recently planned first.
    on_device: dict[str, int] = field(default_factory=dict)
    #: Turns are long, because the models with work neither fit the device nor can wait.
    crowded: bool = False
    #: The model whose weights are to be fetched behind the turns, and since when; -1 before.
    fetching: str = ""
    fetching_since_ns: int = -1
    usage: WorkerMemory | None = None
    #: Whose beginnings of prompts it probably keeps, by model.
    prefixes: dict[str, PrefixPlace] = field(default_factory=dict)
    turn_count: int = 0
    switch_count: int = 0
    token_count: int = 0
    _models_step_ns: float = -1.0

    @property
    def engine_id(self) -> str:
        """``node/index``."""
        return self.identity.engine_id

    @property
    def draining(self) -> bool:
        """Is to be stopped: it ends what it has, and nothing new goes there."""
        return self.draining_since_ns >= 0

    def knows(self, needs: Capabilities) -> bool:
        """Whether its worker's release understands all of this."""
        return needs <= self.identity.capabilities

    @property
    def role(self) -> EngineRole:
        """What it is for."""
        return self.identity.role

    def assign(self, sequence: Sequence, now_ns: int) -> None:
        """Take in a sequence under its handle."""
        queue = self.queues.get(sequence.model)
        if queue is None:
            queue = self.queues[sequence.model] = ModelQueue(
                sequence.model,
                weight_bytes=sequence.weight_bytes,
                kv_token_bytes=sequence.kv_token_bytes,
                tpot_ns=sequence.slo.tpot_ns,
            )
            self._models_step_ns = -1.0
        self.sequences[sequence.handle] = sequence
        sequence.engine_id = self.engine_id
        queue.count(sequence, 1)
        queue.tpot_ns = min(queue.tpot_ns, sequence.slo.tpot_ns)
        if sequence.held_back:
            queue.paused[sequence.handle] = sequence
        else:
            queue.wait({sequence.handle: sequence}, now_ns)

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended or moves away."""
        handle = sequence.handle
        del self.sequences[handle]
        queue = self.queues[sequence.model]
        self._take_out(queue, handle)
        queue.count(sequence, -1)
        if not queue.size:
            del self.queues[sequence.model]
            self._models_step_ns = -1.0
        sequence.engine_id = None
        sequence.fetched_from = ""

    def pause(self, sequence: Sequence) -> Turn | None:
        """Take a sequence out of its turn, which is returned, or out of the waiting ones."""
        queue = self.queues[sequence.model]
        if sequence.handle in queue.handing:  # it will wait where it goes
            return None
        turn = self._take_out(queue, sequence.handle)
        queue.paused[sequence.handle] = sequence
        return turn

    def resume(self, sequence: Sequence, now_ns: int) -> None:
        """Let a sequence that nothing holds back any more wait for a turn again."""
        queue = self.queues[sequence.model]
        if not sequence.held_back and queue.paused.pop(sequence.handle, None) is not None:
            queue.wait({sequence.handle: sequence}, now_ns)

    def leave(self, sequence: Sequence, now_ns: int) -> Turn | None:
        """Let a member of a turn wait for another one; returns the turn if it was in any."""
        queue = self.queues[sequence.model]
        for turn in self.turns:
            if turn.members.pop(sequence.handle, None) is not None:
                queue.wait({sequence.handle: sequence}, now_ns)
                return turn
        return None

    def begin_hand_off(self, sequence: Sequence) -> None:
        """A prefill turn has given a sequence its token: it is about to leave the worker."""
        queue = self.queues[sequence.model]
        self._take_out(queue, sequence.handle)
        queue.handing[sequence.handle] = sequence

    @property
    def resident(self) -> str:
        """The model whose weights were used last."""
        return next(reversed(self.on_device), "")

    def begin(self, turn: Turn, switched: bool, now_ns: int) -> None:
        """The worker has begun a turn: its weights are on the device, and others made room."""
        turn.started_ns = now_ns
        if self.fetching == turn.model:
            self.fetching = ""
        self.want(self.fetching, now_ns)
        queue = self.queues.get(turn.model)
        if queue is None:
            return
        queue.begun = True
        if self.on_device.pop(turn.model, None) is not None and switched:
            # Something else was evicted than expected: rely on what was there a moment ago.
            self.on_device = dict([*self.on_device.items()][-1:])
        self.on_device[turn.model] = queue.weight_bytes
        used = sum(self.on_device.values())
        used += sum(q.kv_bytes for name, q in self.queues.items() if name in self.on_device)
        for name in list(self.on_device)[:-1]:
            if used <= self.identity.device.pool_bytes:
                break
            used -= self.on_device.pop(name)
            used -= self.queues[name].kv_bytes if name in self.queues else 0

    def want(self, model: str, now_ns: int) -> None:
        """A model's weights are to be fetched; nobody's when it is empty."""
        if model != self.fetching:
            self.fetching, self.fetching_since_ns = model, -1
        asked = [turn.prefetch for turn in self.turns[:1] if turn.started_ns >= 0]
        asked += [turn.model for turn in self.turns[1:] if asked]
        if model in asked and self.fetching_since_ns < 0:
            self.fetching_since_ns = now_ns

    def turn(self, turn_id: int) -> Turn | None:
        """The turn of this id, if the worker still has it."""
        for turn in self.turns:
            if turn.turn_id == turn_id:
                return turn
        return None

    def turn_of(self, model: str) -> Turn | None:
        """The running or queued turn of a model."""
        for turn in self.turns:
            if turn.model == model:
                return turn
        return None

    def draw(self, model: str, room: int) -> dict[int, Sequence]:
        """See `ModelQueue.draw`."""
        queue = self.queues.get(model)
        return {} if queue is None else queue.draw(room)

    def end_turn(self, turn: Turn, now_ns: int) -> None:
        """Remove a turn; members that go on wait ahead of those that had no turn yet."""
        self.turns.remove(turn)
        queue = self.queues.get(turn.model)
        if queue is None:
            return
        queue.wait_again(turn.members, now_ns)

    def step_ns(self, model: str) -> float:
        """Expected time of a decode step with all runnable sequences of a model that fit into a
        batch, at the context they have; of one sequence while there are none.
        """
        batch = self.batch_of(model)
        if not batch:
            return self.estimator.step_ns(model)
        queue = self.queues[model]
        return self.estimator.step_ns(model, batch, queue.tokens * batch / queue.size)

    def models_step_ns(self) -> float:
        """One step of every model with sequences, as expected when the latest came or went."""
        if self._models_step_ns < 0:
            self._models_step_ns = sum(self.step_ns(model) for model in self.queues)
        return self._models_step_ns

    def batch_of(self, model: str) -> int:
        """Runnable sequences of a model that fit into a batch."""
        queue = self.queues.get(model)
        if queue is None:
            return 0
        return min(queue.size - len(queue.paused), self.identity.max_batch_sequences)

    def contested(self, model: str) -> bool:
        """Whether any other model has something to run."""
        return any(
            queue.size > len(queue.paused) + len(queue.handing)
            for name, queue in self.queues.items()
            if name != model
        )

    def busy_with(self, model: str) -> bool:
        """Whether the worker may still hold sequences of a model."""
        return (
            model in self.queues
            or model in self.ending.values()
            or any(sequence.model == model for sequence in self.held.values())
        )

    def audit(self) -> Iterator[str]:
        """Every way in which the ledger contradicts itself; none when it is sound."""
        places = [q.waiting for q in self.queues.values()]
        places += [q.paused for q in self.queues.values()]
        places += [q.handing for q in self.queues.values()]
        places += [turn.members for turn in self.turns]
        found = [handle for place in places for handle in place]
        if sorted(found) != sorted(self.sequences):
            yield f"{self.engine_id}: sequences {sorted(self.sequences)}, in places {found}"
        if sum(queue.size for queue in self.queues.values()) != len(self.sequences):
            yield f"{self.engine_id}: queue sizes do not add up"
        for model, queue in self.queues.items():
            held = [s for s in self.sequences.values() if s.model == model]
            tokens = sum(len(s.prompt) + len(s.generated) for s in held)
            full = sum(s.pool_bytes - s.weight_bytes for s in held)
            if (queue.tokens, queue.full_kv_bytes) != (tokens, full):
                yield f"{self.engine_id}: tokens or KV of {model} do not add up"
        for handle, sequence in self.held.items():
            source = sequence.source
            if source is None or (source.epoch, source.handle) != (self.epoch, handle):
                yield f"{self.engine_id}: holds {handle} for nobody"
        if any(len(turn.members) > self.identity.max_batch_sequences for turn in self.turns):
            yield f"{self.engine_id}: a turn has too many members"
        if len(self.turns) > 2:
            yield f"{self.engine_id}: {len(self.turns)} turns at the worker"

    def _take_out(self, queue: ModelQueue, handle: int) -> Turn | None:
        """Remove a sequence from wherever it is; returns the turn that it was a member of."""
        if queue.drop(handle):
            return None
        for turn in self.turns:
            if turn.members.pop(handle, None) is not None:
                return turn
        return None
