"""The continuous batch inside a turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from aegaeon.errors import AegaeonError, EngineError
from aegaeon_worker.engine.events import (
    FinishReason,
    PromptScores,
    SequenceFailed,
    StepBatch,
)
from aegaeon_worker.engine.execution import Execution, Watch
from aegaeon_worker.engine.issued_step import IssuedStep
from aegaeon_worker.engine.model_table import InstalledModel
from aegaeon_worker.engine.prompt_scores import PendingPromptScores
from aegaeon_worker.engine.request_log import log_failure
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.engine.sharing import without_repetition
from aegaeon_worker.engine.step_issuer import issue_step
from aegaeon_worker.engine.step_plan import Chunk, plan_step
from aegaeon_worker.engine.turn import Turn
from aegaeon_worker.grammar.masks import Masks
from aegaeon_worker.grammar.waiting import compiled
from aegaeon_worker.kv.errors import PoolTooSmall
from aegaeon_worker.kv.memory_manager import MemoryManager
from aegaeon_worker.parallel.errors import GroupBroken


@dataclass
class StepResult:
    """What is known now: the event of a step, and members that failed."""

    batch: StepBatch
    failed: list[SequenceFailed] = field(default_factory=list)


class TurnRunner:
    """Runs the members of one turn, as many at a time as memory and limits allow.

    Members are taken in order of precedence and none is passed over, so a long one cannot starve.
    When the batch outgrows the device, the last in precedence gives way and comes back later.

    Steps are issued ahead of the tokens that they go on from, as far as ``Execution.lookahead``
    says. The books of memory follow the order of issue, as the device does; tokens are told in the
    order in which steps end. A sequence that has ended by then is told nothing.
    """

    def __init__(
        self,
        turn: Turn,
        model: InstalledModel,
        memory: MemoryManager,
        execution: Execution,
        masks: Masks,
        max_sequences: int,
        alive: Callable[[Sequence], bool],
    ) -> None:
        """``alive`` says whether a sequence has neither ended nor gone elsewhere."""
        self._turn = turn
        self._model = model
        self._memory = memory
        self._execution = execution
        self._masks = masks
        self._max_sequences = max_sequences
        self._alive = alive
        self._under_way: deque[IssuedStep] = deque()
        self._last_ns = 0
        self._ended_ns = 0
        if model.decode is not None:
            model.decode.begin_turn()

    @property
    def awaited(self) -> bool:
        """Whether a step under way brings a token that somebody waits for, or part of a prompt."""
        return any(
            step.prefill_tokens or any(map(self._alive, step.completing))
            for step in self._under_way
        )

    @property
    def ended_ns(self) -> int:
        """When the last step that has been taken in was over."""
        return self._ended_ns

    def left_ns(self) -> int:
        """How long the device will have what is under way, as far as is known; 0 without any."""
        if not self._under_way:
            return 0
        times = [self._last_ns]
        if not self._under_way[0].prefill_tokens:
            times.append(self._model.pace.decode_ns)
        expected_ns = min(filter(None, times), default=0)
        return max(0, self._ended_ns + expected_ns - time.perf_counter_ns())

    def follow(self, ended_ns: int) -> None:
        """What is under way began at ``ended_ns``, when the device had done the turn before."""
        self._ended_ns = max(self._ended_ns, ended_ns)

    def exhausted(self, members: Seq[Sequence]) -> bool:
        """Whether none of the members goes on here after the token under way."""
        return all(map(self._is_due, members))

    def observe(self, step: StepBatch) -> None:
        """Learn from a step's time how much of a prompt fits beside decoding sequences."""
        self._model.pace.observe(step)

    def step(self, members: Seq[Sequence]) -> list[StepResult]:
        """Issue one pass over the members that fit, and take in the oldest step if it is due.

        Without members, or if none can go on before its token is known, only the latter.
        """
        if any(sequence.needs_tokens for sequence in members):
            return self.take_in()
        watch = self._execution.watch()
        refused = StepResult(StepBatch(self._turn.turn_id))
        ready = compiled(members, refused.failed)
        running = self._fit([s for s in ready if not self._is_due(s)], refused)
        chunks = plan_step(running, self._model.pace)
        results = [refused] if refused.failed else []
        if not chunks:
            return results + self.take_in()
        before = self._under_way[-1] if self._under_way else None
        try:
            self._issue(chunks, before, watch)
        except GroupBroken:
            raise  # no fault of a sequence
        except Exception as error:
            if before is not None:
                # What is under way first; the next attempt will meet the error with nothing else.
                return results + self.take_in()
            return results + self._isolate(chunks, error)
        if len(self._under_way) > self._execution.lookahead:
            results += self.take_in()
        return results

    def _is_due(self, sequence: Sequence) -> bool:
        """It does not go on here after the token under way, or ends with it."""
        leaves = self._turn.hands_off or sequence.is_full
        return sequence.num_under_way > 0 and leaves

    def _fit(self, members: Seq[Sequence], refused: StepResult) -> list[Sequence]:
        """Give room to as many members as there is."""
        running: list[Sequence] = []
        waiting = deque(members[: self._max_sequences])
        while waiting:
            sequence = waiting.popleft()
            try:
                fits = self._memory.grow(sequence.handle, sequence.num_tokens)
                while not fits and waiting:
                    # What is left is held by members: those behind this one give way.
                    self._memory.preempt(waiting.pop().handle)
                    fits = self._memory.grow(sequence.handle, sequence.num_tokens)
            except PoolTooSmall as error:
                refused.failed.append(SequenceFailed(sequence.handle, error))
                continue
            if fits:
                # The truth is in memory: less than computed if the sequence lost its KV.
                sequence.num_computed = self._memory.stored_tokens(sequence.handle)
                running.append(sequence)
        return without_repetition(running, self._memory.next_key)

    def _issue(self, chunks: Seq[Chunk], before: IssuedStep | None, watch: Watch) -> None:
        """Issue a pass and bring the books to where the device will be after it."""
        tables = [self._memory.block_table(chunk.sequence.handle) for chunk in chunks]
        issued = issue_step(self._model, chunks, tables, before, self._masks, watch)
        if not self._under_way:
            self._ended_ns = time.perf_counter_ns()
        self._under_way.append(issued)
        if issued.scores is not None:
            for sequence, tokens in issued.scores.pieces:
                sequence.num_scored = tokens.stop
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.num_computed += chunk.num_tokens
            self._memory.commit(sequence.handle, sequence.num_computed)
        for sequence in issued.completing:
            sequence.num_under_way += 1
        turn = self._turn
        if turn.hands_off and not turn.on_device and self._execution.lookahead:
            # Behind this step, and not behind the one that will have been issued by then.
            leaving = [s.handle for s in issued.completing if not s.is_full]
            self._memory.hand_offs.prepare(leaving)

    def take_in(self) -> list[StepResult]:
        """Wait for the result of the oldest step under way, if there is one.

        Never more: whoever gets it ends sequences before the next one is looked at.
        """
        return [self._result(self._under_way.popleft())] if self._under_way else []

    def _result(self, step: IssuedStep) -> StepResult:
        choices = step.wait()
        self._ended_ns = time.perf_counter_ns()
        self._last_ns = step.elapsed_ns
        self._turn.steps += 1
        batch = StepBatch(
            self._turn.turn_id,
            step_time_ns=self._last_ns,
            prefill_tokens=step.prefill_tokens,
            decode_sequences=step.decode_sequences,
            context_tokens=step.context_tokens,
        )
        result = StepResult(batch)
        if step.scores is not None:
            self._tell_scores(step.scores, result)
        for sequence, choice in zip(step.completing, choices, strict=True):
            sequence.num_under_way -= 1
            if not self._alive(sequence):
                continue
            if result.failed and any(f.handle == sequence.handle for f in result.failed):
                continue
            if isinstance(choice, AegaeonError):
                result.failed.append(SequenceFailed(sequence.handle, choice))
                continue
            try:
                reason = sequence.append(choice.token_id)
            except AegaeonError as error:
                result.failed.append(SequenceFailed(sequence.handle, error))
            else:
                batch.add(sequence.handle, choice.token_id, reason, choice.log_probabilities)
        return result

    def _tell_scores(self, scores: PendingPromptScores, result: StepResult) -> None:
        """What a step tells of prompts; a sequence of which it cannot fails."""
        for (sequence, tokens), told in zip(scores.pieces, scores.wait(), strict=True):
            if not self._alive(sequence):
                continue
            if isinstance(told, EngineError):
                result.failed.append(SequenceFailed(sequence.handle, told))
            else:
                piece = PromptScores(sequence.handle, tokens.start, told)
                result.batch.prompt_scores.append(piece)

    def _isolate(self, chunks: Seq[Chunk], error: Exception) -> list[StepResult]:
        """A pass failed: repeat it one by one, so that only the sequence at fault fails."""
        if len(chunks) == 1:
            sequence = chunks[0].sequence
            handle = sequence.handle
            log_failure(sequence, "the forward pass", error)
            reason = EngineError(f"the forward pass failed: {type(error).__name__}: {error}")
            failed = SequenceFailed(handle, reason)
            return [StepResult(StepBatch(self._turn.turn_id), [failed])]
        results: list[StepResult] = []
        for chunk in chunks:
            try:
                self._issue([chunk], None, self._execution.watch())
            except GroupBroken:
                raise
            except Exception as fault:
                results += self._isolate([chunk], fault)
            else:
                results += self.take_in()
        return results


def ended(batch: StepBatch) -> list[int]:
    """Handles that ended in a step."""
    rows = zip(batch.handles, batch.finish_reasons, strict=True)
    return [handle for handle, reason in rows if reason is not FinishReason.NONE]


def going_on(batch: StepBatch) -> list[int]:
    """Handles that got a token in a step and did not end with it."""
    rows = zip(batch.handles, batch.finish_reasons, strict=True)
    return [handle for handle, reason in rows if reason is FinishReason.NONE]
