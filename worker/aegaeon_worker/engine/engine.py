"""The engine: commands in, events out, one step at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from aegaeon.errors import AegaeonError, EngineError, PreconditionError
from aegaeon_worker.engine import commands as cmd
from aegaeon_worker.engine.admission import admit
from aegaeon_worker.engine.events import (
    Event,
    FinishReason,
    MemoryUsage,
    ModelFailed,
    Ready,
    SequenceFailed,
    StepBatch,
    TurnEnded,
    TurnEndReason,
    TurnStarted,
)
from aegaeon_worker.engine.model_table import InstalledModel, ModelTable, Prepared
from aegaeon_worker.engine.request_log import log_failure
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.engine.status import EngineStatus
from aegaeon_worker.engine.step_plan import StepLimits
from aegaeon_worker.engine.turn import Turn
from aegaeon_worker.engine.turn_queue import TurnQueue
from aegaeon_worker.engine.turn_runner import TurnRunner, ended, going_on
from aegaeon_worker.grammar.constraints import Constraints
from aegaeon_worker.kv.errors import PoolTooSmall
from aegaeon_worker.kv.memory_manager import MemoryManager
from aegaeon_worker.kv.prefix_keys import Prefix

logger = logging.getLogger(__name__)

_MEMORY_EVENT_INTERVAL_NS = 1_000_000_000


class Engine:
    """One device's engine. Not thread-safe: whoever owns it calls `handle` and `step`."""

    def __init__(
        self,
        models: ModelTable,
        memory: MemoryManager,
        usage: Callable[[], MemoryUsage],
        constraints: Constraints,
        *,
        limits: StepLimits,
        max_batch_sequences: int,
    ) -> None:
        self._models = models
        self._memory = memory
        self._usage = usage
        self._constraints = constraints
        self._masks = constraints.masks
        self._limits = limits
        self._max_sequences = max_batch_sequences
        self._sequences: dict[int, Sequence] = {}
        self._turns = TurnQueue()
        self._runner: TurnRunner | None = None
        self._publish: Callable[[Event], None] = _discard
        self._idle_since_ns = 0
        self._memory_told_ns = 0
        self.status = EngineStatus(usage(), (), "")

    @property
    def has_work(self) -> bool:
        """A turn is running or queued, or sequences are on their way out."""
        return bool(self._turns) or self._memory.hand_offs.under_way

    def handle(self, command: cmd.Command | Prepared) -> None:  # noqa: C901 (one row per command)
        """Apply one command."""
        match command:
            case cmd.AddSequences(sequences):
                self._add_sequences(sequences)
            case cmd.CancelSequences(handles):
                self._free(handles, cancel=True)
            case cmd.ReleaseSequences(handles):
                self._free(handles, cancel=False)
            case cmd.QueueTurn():
                self._turns.add(Turn(command, time.perf_counter_ns()))
            case cmd.JoinTurn(turn_id, handles):
                if turn := self._turns.find(turn_id):
                    turn.join(handles)
            case cmd.LeaveTurn(turn_id, handles):
                if turn := self._turns.find(turn_id):
                    turn.leave(handles)
            case cmd.LimitTurn(turn_id, quota_ns):
                if turn := self._turns.find(turn_id):
                    turn.quota_ns = quota_ns
            case cmd.FetchEnded(arrival, transfer_ns, interruptions):
                self._memory.fetches.ended(arrival, transfer_ns, interruptions)
                self._tell_arrived()
            case cmd.LoadModel(spec):
                self._models.load(spec, self._tell)
            case cmd.UnloadModel(model):
                self._unload(model)
            case cmd.Attach(publish):
                self._attach(publish)
            case Prepared():
                self._models.install(command, self._tell)
                self._tell_memory()

    def step(self) -> None:
        """Begin a turn, make one step of it, or end it; without turns, see sequences off."""
        self._tell_handed_off(wait=not self._turns)
        turn = self._turns.current
        if turn is None:
            if self._turns:
                self._begin_turn(self._turns.advance())
            return
        members = self._members(turn)
        if not members:
            self._end_turn(turn, TurnEndReason.COMPLETED)
        elif turn.is_over_quota(time.perf_counter_ns()):
            self._end_turn(turn, TurnEndReason.QUOTA)
        else:
            self._step_turn(turn, members)

    def close(self) -> None:
        """Drop all sequences and models; their memory is given back."""
        self._attach(None)
        self._models.close()

    # Turns

    def _members(self, turn: Turn) -> list[Sequence]:
        found = (self._sequences.get(handle) for handle in turn.members)
        return [sequence for sequence in found if sequence is not None]

    def _begin_turn(self, turn: Turn) -> None:
        model = self._models.get(turn.model)
        before = self._memory.transfers
        if model is not None:
            self._activate(turn, model)
        moved = self._memory.transfers - before
        now = time.perf_counter_ns()
        self._publish(
            TurnStarted(
                turn.turn_id,
                switched=moved.weight_bytes > 0,
                switch_time_ns=now - max(self._idle_since_ns, turn.queued_ns),
                weight_copy_ns=moved.weight_ns,
                weight_bytes=moved.weight_bytes,
                kv_swap_ns=moved.kv_ns,
                kv_bytes=moved.kv_bytes,
            )
        )
        self._tell_arrived()
        if model is None:
            error = PreconditionError(f"model {turn.model} is not loaded on this worker")
            members = self._members(turn)
            self._fail(SequenceFailed(sequence.handle, error) for sequence in members)
            self._end_turn(turn, TurnEndReason.FAILED)

    def _activate(self, turn: Turn, model: InstalledModel) -> None:
        """Bring the model and the KV of its members to the device."""
        self._runner = TurnRunner(
            turn.turn_id, model, self._memory, self._limits, self._max_sequences, self._masks
        )
        while members := self._members(turn)[: self._max_sequences]:
            wants = [(sequence.handle, len(sequence.tokens)) for sequence in members]
            try:
                self._memory.activate(turn.model, wants)
            except PoolTooSmall as error:
                self._fail([SequenceFailed(members[0].handle, error)])
            else:
                break
        self._take_lost(turn)

    def _step_turn(self, turn: Turn, members: list[Sequence]) -> None:
        assert self._runner is not None
        if turn.first_step_ns is None:
            turn.first_step_ns = time.perf_counter_ns()
        result = self._runner.step(members)
        turn.steps += 1
        self._tell_arrived()
        if result.batch.handles or result.batch.prefill_tokens:
            self._publish(result.batch)
        for handle in ended(result.batch):
            self._forget(handle)
        self._fail(result.failed)
        if turn.hands_off:
            self._hand_off(going_on(result.batch))
        self._take_lost(turn)
        self._prefetch_following(turn)
        if time.perf_counter_ns() - self._memory_told_ns > _MEMORY_EVENT_INTERVAL_NS:
            self._tell_memory()

    def _prefetch_following(self, turn: Turn) -> None:
        """Go on with the weights of the queued model, then of the one that will probably follow."""
        queued = self._turns.following
        for model in (queued.model if queued else None, turn.prefetch_model):
            if not model or model == turn.model or model in turn.unfetchable:
                continue
            try:
                if not self._memory.prefetch(model):
                    return
            except AegaeonError as error:
                # Its own turn will meet the error again, and answer for it.
                logger.warning("%s cannot be prefetched: %s", model, error)
                turn.unfetchable.add(model)

    def _end_turn(self, turn: Turn, reason: TurnEndReason) -> None:
        now = time.perf_counter_ns()
        self._turns.current = None
        self._runner = None
        self._idle_since_ns = now
        elapsed = turn.elapsed_ns(now)
        self._publish(TurnEnded(turn.turn_id, reason, elapsed, turn.steps, turn.recomputed))
        self._tell_memory()

    def _take_lost(self, turn: Turn) -> None:
        """Count the sequences that lost their KV; they start over when they are next in a step."""
        turn.recomputed += len(self._memory.take_lost())

    # Sequences

    def _add_sequences(self, specs: Iterable[cmd.SequenceSpec]) -> None:
        for spec in specs:
            try:
                if spec.handle in self._memory:
                    raise EngineError(f"sequence {spec.handle} exists already")
                sequence = admit(spec, self._models.get(spec.model), self._constraints)
            except AegaeonError as error:
                self._publish(SequenceFailed(spec.handle, error))
                continue
            self._sequences[spec.handle] = sequence
            prefix = Prefix(sequence.tokens, spec.cache_salt) if spec.prefix_caching else None
            self._memory.add_sequence(spec.handle, spec.model, spec.kv, prefix)
        self._tell_arrived()

    def _hand_off(self, handles: list[int]) -> None:
        """Let sequences go on elsewhere; no turn of this engine has a use for them any more."""
        for handle in handles:
            del self._sequences[handle]
        self._memory.hand_off(handles)

    def _tell_handed_off(self, *, wait: bool) -> None:
        for event in self._memory.hand_offs.finish(wait=wait):
            self._publish(event)

    def _tell_arrived(self) -> None:
        for fetched in self._memory.fetches.take_outcomes():
            self._publish(fetched)
        for imported in self._memory.take_imports():
            self._publish(imported)
        for reused in self._memory.take_reused():
            self._publish(reused)

    def _free(self, handles: list[int], *, cancel: bool) -> None:
        """Free what was handed off, of which nothing is left to tell, and perhaps end the rest."""
        self._memory.hand_offs.release(handles)
        batch = StepBatch(turn_id=0)
        for handle in handles:
            if cancel and handle in self._memory:
                self._forget(handle)
                batch.add(handle, 0, FinishReason.CANCELLED)
        if batch.handles:
            self._publish(batch)
        if not self._turns:
            self._tell_memory()

    def _fail(self, failures: Iterable[SequenceFailed]) -> None:
        for failure in failures:
            sequence = self._sequences.get(failure.handle)
            if sequence is not None:
                log_failure(sequence, failure.error)
            self._forget(failure.handle, sound=False)
            self._publish(failure)

    def _forget(self, handle: int, *, sound: bool = True) -> None:
        self._sequences.pop(handle, None)  # none: it was about to be handed off
        self._memory.free(handle, sound=sound)

    def _attach(self, publish: Callable[[Event], None] | None) -> None:
        self._turns.clear()
        self._runner = None
        self._sequences.clear()
        self._memory.free_all()
        self._publish = publish or _discard
        self._publish(Ready(self._models.loaded))
        self._tell_memory()

    def _unload(self, name: str) -> None:
        self._tell_handed_off(wait=True)
        if any(sequence.model == name for sequence in self._sequences.values()):
            error = PreconditionError(f"{name} still has sequences on this worker")
            self._publish(ModelFailed(name, error))
            return
        self._models.unload(name, self._tell)
        self._tell_memory()

    def _tell(self, event: Event) -> None:
        """Publish to whoever listens by then; packers call it from their threads."""
        self._publish(event)

    def _tell_memory(self) -> None:
        if not self._turns:  # nothing else would give back what ended sequences leave
            self._memory.tidy()
        self._memory_told_ns = time.perf_counter_ns()
        usage = self._usage()
        current = self._turns.current
        self.status = EngineStatus(usage, self._models.loaded, current.model if current else "")
        self._publish(usage)


def _discard(event: Event) -> None:
    """Nobody listens."""
