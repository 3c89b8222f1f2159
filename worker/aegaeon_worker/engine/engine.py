"""The engine: commands in, events out, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from aegaeon.errors import AegaeonError, EngineError, PreconditionError
from aegaeon_worker.engine import commands as cmd
from aegaeon_worker.engine.admission import admit, prefix_of
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
)
from aegaeon_worker.engine.execution import Execution
from aegaeon_worker.engine.lost_kv import LostKv
from aegaeon_worker.engine.model_table import InstalledModel, ModelTable, Prepared
from aegaeon_worker.engine.preparation import prepare_following
from aegaeon_worker.engine.request_log import log_failure
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.engine.status import EngineStatus
from aegaeon_worker.engine.turn import Turn
from aegaeon_worker.engine.turn_queue import TurnQueue
from aegaeon_worker.engine.turn_runner import TurnRunner, ended, going_on
from aegaeon_worker.engine.turn_start import TurnStart
from aegaeon_worker.grammar.constraints import Constraints
from aegaeon_worker.kv.errors import PoolTooSmall
from aegaeon_worker.kv.memory_manager import MemoryManager

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
        execution: Execution,
        max_batch_sequences: int,
    ) -> None:
        self._models = models
        self._memory = memory
        self._usage = usage
        self._constraints = constraints
        self._execution = execution
        self._max_sequences = max_batch_sequences
        self._sequences: dict[int, Sequence] = {}
        self._turns = TurnQueue()
        self._runner: TurnRunner | None = None
        self._lost = LostKv()
        self._start: TurnStart | None = None
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
        runner = self._runner
        over = runner is not None and turn.is_over_quota(runner.free_at_ns(time.perf_counter_ns()))
        over = over and not self._lost.owes()
        if self._start is not None:
            # The first step may wait for copies. That is not its time, so it goes alone.
            over = runner is not None and runner.awaited
        if runner is not None and (runner.awaited or (members and not over)):
            self._step_turn(turn, runner, [] if over else members)
        else:
            self._end_turn(turn, TurnEndReason.QUOTA if members else TurnEndReason.COMPLETED)

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
        self._start = TurnStart(turn, self._memory, self._idle_since_ns)
        if model is not None:
            self._activate(turn, model)
        self._start.issued()
        if self._start.is_over:
            self._tell_started(turn)
        self._tell_arrived()
        if model is None:
            error = PreconditionError(f"model {turn.model} is not loaded on this worker")
            members = self._members(turn)
            self._fail(SequenceFailed(sequence.handle, error) for sequence in members)
            self._end_turn(turn, TurnEndReason.FAILED)

    def _tell_started(self, turn: Turn) -> bool:
        """Tell of the turn's start unless that was done; whether it was told only now."""
        if self._start is None:
            return False
        (started, ended_ns), self._start = self._start.end(), None
        self._publish(started)
        if turn.first_step_ns is not None:
            turn.first_step_ns = max(turn.first_step_ns, ended_ns)
        return True

    def _activate(self, turn: Turn, model: InstalledModel) -> None:
        """Bring the model and the KV of its members to the device."""
        self._runner = TurnRunner(
            turn,
            model,
            self._memory,
            self._execution,
            self._constraints.masks,
            self._max_sequences,
            lambda sequence: self._sequences.get(sequence.handle) is sequence,
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
        self._lost.begin_turn(self._members(turn))

    def _step_turn(self, turn: Turn, runner: TurnRunner, members: list[Sequence]) -> None:
        if turn.first_step_ns is None:
            turn.first_step_ns = time.perf_counter_ns()
        results = runner.step(members)
        self._tell_arrived()
        for result in results:
            if self._tell_started(turn):
                result.batch.step_time_ns = 0  # it has waited for copies
            runner.observe(result.batch)
            if result.batch.handles or result.batch.prefill_tokens:
                self._publish(result.batch)
            self._lost.settle(result.batch.handles)
            for handle in ended(result.batch):
                self._forget(handle)
            self._fail(result.failed)
            if turn.hands_off:
                self._hand_off(going_on(result.batch))
        self._take_lost(turn)
        coming = self._turns.following
        members = self._members(coming)[: self._max_sequences] if coming else []
        prepare_following(turn, coming, members, self._memory)
        if time.perf_counter_ns() - self._memory_told_ns > _MEMORY_EVENT_INTERVAL_NS:
            self._tell_memory()

    def _end_turn(self, turn: Turn, reason: TurnEndReason) -> None:
        self._tell_started(turn)
        now = time.perf_counter_ns()
        self._turns.current = None
        self._runner = None
        self._idle_since_ns = now
        elapsed = turn.elapsed_ns(now)
        self._publish(TurnEnded(turn.turn_id, reason, elapsed, turn.steps, turn.recomputed))
        self._tell_memory()

    def _take_lost(self, turn: Turn) -> None:
        """Count the sequences that lost their KV; they start over when they are next in a step."""
        lost = self._memory.take_lost()
        turn.recomputed += len(lost)
        self._lost.add(lost)

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
            prefix = prefix_of(spec, sequence)
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
        self._lost.settle([handle])
        self._memory.free(handle, sound=sound)

    def _attach(self, publish: Callable[[Event], None] | None) -> None:
        self._turns.clear()
        self._runner = self._start = None
        self._lost = LostKv()
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
