"""The engine: commands in, events out, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable

from aegaeon.errors import PreconditionError
from aegaeon_worker.engine import commands as cmd
from aegaeon_worker.engine.events import (
    Event,
    MemoryUsage,
    ModelFailed,
    Ready,
    SequenceFailed,
    TurnEnded,
    TurnEndReason,
)
from aegaeon_worker.engine.execution import Execution
from aegaeon_worker.engine.model_table import InstalledModel, ModelTable, Prepared
from aegaeon_worker.engine.preparation import prepare_following
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.engine.sequences import Sequences
from aegaeon_worker.engine.status import EngineStatus
from aegaeon_worker.engine.teller import Teller
from aegaeon_worker.engine.turn import Turn
from aegaeon_worker.engine.turn_queue import TurnQueue
from aegaeon_worker.engine.turn_runner import StepResult, TurnRunner, ended, going_on
from aegaeon_worker.engine.turn_start import TurnStart
from aegaeon_worker.grammar.constraints import Constraints
from aegaeon_worker.kv.errors import PoolTooSmall
from aegaeon_worker.kv.memory_manager import MemoryManager
from aegaeon_worker.peers.lender import LenderGone, PullAnswered
from aegaeon_worker.peers.lending import SaveOffer

#: Time that it takes to begin a turn and to issue a step: so long before the device has nothing to
#: do, the engine stops listening for what comes next.
_ISSUE_NS = 500_000


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
        self._constraints = constraints
        self._execution = execution
        self._max_sequences = max_batch_sequences
        self._turns = TurnQueue()
        self._runner: TurnRunner | None = None
        self._start: TurnStart | None = None
        self._teller = Teller(models, memory, self._turns, usage)
        self._publish = self._teller.tell
        self._sequences = Sequences(models, memory, constraints, self._teller)
        self._idle_since_ns = 0
        self._spare_until_ns = 0

    @property
    def status(self) -> EngineStatus:
        """What the engine last said of itself."""
        return self._teller.status

    @property
    def has_work(self) -> bool:
        """A turn is running or queued, or sequences are on their way out."""
        memory = self._memory
        return bool(self._turns) or memory.hand_offs.under_way or memory.pulls.under_way

    def handle(self, command: cmd.Command | Prepared) -> None:  # noqa: C901 (one row per command)
        """Apply one command."""
        match command:
            case cmd.AddSequences(sequences):
                self._sequences.add(sequences)
            case cmd.CancelSequences(handles) | cmd.ReleaseSequences(handles):
                self._sequences.free(handles, cancel=isinstance(command, cmd.CancelSequences))
                if not self._turns:
                    self._teller.tell_memory()
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
                self._teller.tell_arrived()
            case PullAnswered() | LenderGone() | SaveOffer():
                self._sequences.hear_peer(command)
            case cmd.LoadModel(spec):
                self._models.load(spec, self._publish)
            case cmd.UnloadModel(model):
                self._unload(model)
            case cmd.Attach(publish):
                self._attach(publish)
            case Prepared():
                self._models.install(command, self._publish)
                self._teller.tell_memory()

    @property
    def spare_s(self) -> float:
        """How long commands may be waited for ahead of the next `step`, though there is work."""
        if not self._spare_until_ns or self._turns.following is not None:
            return 0.0
        return max(0, self._spare_until_ns - time.perf_counter_ns()) / 1e9

    def step(self) -> None:
        """Begin a turn, make one step of it, or end it; without turns, see sequences off."""
        self._spare_until_ns = 0
        self._teller.tell_handed_off(wait=not self._turns)
        self._teller.tell_pulled(wait=not self._turns)
        turn = self._turns.current
        if turn is None:
            if self._turns:
                self._begin_turn(self._turns.advance())
            return
        runner = self._runner
        assert runner is not None
        if self._start is not None and not runner.awaited and self._start.is_over:
            self._tell_started(turn)
        members = self._sequences.of(turn)
        goes_on = not self._is_over(turn, runner) and not runner.exhausted(members)
        if runner.awaited and not goes_on and self._start is None and self._execution.lookahead:
            following = self._turns.following
            if following is not None and self._can_follow(turn, following):
                self._pass_over(turn, runner)
                return
            if following is None and (spare_ns := runner.left_ns() - _ISSUE_NS) > 0:
                self._spare_until_ns = time.perf_counter_ns() + spare_ns
                return
        if runner.awaited or (members and goes_on):
            self._step_turn(turn, runner, members if goes_on else [])
        else:
            self._end_turn(turn)

    def close(self) -> None:
        """Drop all sequences and models; their memory is given back."""
        self._attach(None)
        self._models.close()

    # Turns

    def _is_over(self, turn: Turn, runner: TurnRunner) -> bool:
        """Whether the turn issues no further step, or none for now; to be asked once per step."""
        if self._start is not None:
            # The first step may wait for copies. That is not its time, so it goes alone.
            return runner.awaited
        over = turn.is_over_quota(time.perf_counter_ns() + runner.left_ns())
        return over and not self._sequences.lost.owes()

    def _begin_turn(self, turn: Turn) -> None:
        model = self._models.get(turn.model)
        self._start = TurnStart(turn, self._memory, self._idle_since_ns)
        if model is not None:
            self._runner = self._activate(turn, model)
        self._start.issued()
        self._teller.tell_arrived()
        if model is None:
            error = PreconditionError(f"model {turn.model} is not loaded on this worker")
            members = self._sequences.of(turn)
            self._sequences.fail(SequenceFailed(sequence.handle, error) for sequence in members)
            self._end_turn(turn, TurnEndReason.FAILED)

    def _can_follow(self, turn: Turn, coming: Turn) -> bool:
        """Whether a turn can begin while the last step of ``turn`` is under way."""
        model = self._models.get(coming.model)
        return model is not None and coming.model != turn.model and model.memory.weights.resident

    def _pass_over(self, turn: Turn, runner: TurnRunner) -> None:
        """Issue the first step of the next turn, and then see the last one of this turn out.

        What is told keeps its order, and no time counts twice.
        """
        coming = self._turns.succeed()
        model = self._models.get(coming.model)
        assert model is not None
        start = TurnStart(coming, self._memory, time.perf_counter_ns())
        self._runner = begun = self._activate(coming, model)
        start.issued()
        self._teller.tell_arrived()
        waits = not start.is_over
        early = begun.step(self._sequences.of(coming))
        issued_ns = time.perf_counter_ns()
        while runner.awaited:
            self._take(turn, runner, runner.take_in())
        self._tell_ended(turn)
        begun.follow(runner.ended_ns)
        start.follow(runner.ended_ns)
        coming.first_step_ns = max(issued_ns, runner.ended_ns)
        self._start = start
        if not waits:
            self._tell_started(coming)
        self._take(coming, begun, early)

    def _tell_started(self, turn: Turn) -> bool:
        """Tell of the turn's start unless that was done; whether it was told only now."""
        if self._start is None:
            return False
        (started, ended_ns), self._start = self._start.end(), None
        self._publish(started)
        if turn.first_step_ns is not None:
            turn.first_step_ns = max(turn.first_step_ns, ended_ns)
        return True

    def _activate(self, turn: Turn, model: InstalledModel) -> TurnRunner:
        """Bring the model and the KV of a turn's members to the device."""
        while members := self._sequences.of(turn)[: self._max_sequences]:
            wants = [(sequence.handle, len(sequence.tokens)) for sequence in members]
            try:
                self._memory.activate(turn.model, wants)
            except PoolTooSmall as error:
                self._sequences.fail([SequenceFailed(members[0].handle, error)])
            else:
                break
        self._take_lost(turn)
        self._sequences.lost.begin_turn(self._sequences.of(turn))
        return TurnRunner(
            turn,
            model,
            self._memory,
            self._execution,
            self._constraints.masks,
            self._max_sequences,
            self._sequences.alive,
        )

    def _step_turn(self, turn: Turn, runner: TurnRunner, members: list[Sequence]) -> None:
        if turn.first_step_ns is None:
            turn.first_step_ns = time.perf_counter_ns()
        results = runner.step(members)
        self._teller.tell_arrived()
        self._take(turn, runner, results)
        coming = self._turns.following
        members = self._sequences.of(coming)[: self._max_sequences] if coming else []
        prepare_following(turn, coming, members, self._memory)
        self._teller.tell_memory_in_time()

    def _take(self, turn: Turn, runner: TurnRunner, results: list[StepResult]) -> None:
        """Tell what steps of a turn gave, and see off what ended with them."""
        for result in results:
            if self._tell_started(turn):
                result.batch.step_time_ns = 0  # it has waited for copies
            runner.observe(result.batch)
            if result.batch.handles or result.batch.prefill_tokens:
                self._publish(result.batch)
            self._sequences.lost.settle(result.batch.handles)
            for handle in ended(result.batch):
                self._sequences.forget(handle)
            self._sequences.fail(result.failed)
            if turn.hands_off:
                self._sequences.hand_off(going_on(result.batch), on_device=turn.on_device)
        self._take_lost(turn)

    def _end_turn(self, turn: Turn, reason: TurnEndReason | None = None) -> None:
        self._tell_started(turn)
        self._turns.current = None
        self._runner = None
        self._idle_since_ns = time.perf_counter_ns()
        self._tell_ended(turn, reason)
        self._teller.tell_memory()

    def _tell_ended(self, turn: Turn, reason: TurnEndReason | None = None) -> None:
        if reason is None:
            unfinished = self._sequences.of(turn)
            reason = TurnEndReason.QUOTA if unfinished else TurnEndReason.COMPLETED
        elapsed_ns = turn.elapsed_ns(time.perf_counter_ns())
        self._publish(TurnEnded(turn.turn_id, reason, elapsed_ns, turn.steps, turn.recomputed))

    def _take_lost(self, turn: Turn) -> None:
        """Count the sequences that lost their KV; they start over when they are next in a step."""
        lost = self._memory.take_lost()
        turn.recomputed += len(lost)
        self._sequences.lost.add(lost)

    # Streams and models

    def _attach(self, publish: Callable[[Event], None] | None) -> None:
        self._turns.clear()
        self._runner = self._start = None
        self._sequences.clear()
        self._teller.attach(publish)
        self._publish(Ready(self._models.loaded))
        self._teller.tell_memory()

    def _unload(self, name: str) -> None:
        self._teller.tell_handed_off(wait=True)
        if self._sequences.use(name):
            error = PreconditionError(f"{name} still has sequences on this worker")
            self._publish(ModelFailed(name, error))
            return
        self._models.unload(name, self._publish)
        self._teller.tell_memory()
