"""The continuous batch inside a turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from aegaeon.errors import EngineError
from aegaeon_worker.engine.events import FinishReason, SequenceFailed, StepBatch
from aegaeon_worker.engine.model_table import InstalledModel
from aegaeon_worker.engine.request_log import log_failure
from aegaeon_worker.engine.sampler import Choice, choose_tokens
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.engine.step_plan import Chunk, StepLimits, build_input, plan_step
from aegaeon_worker.grammar.masks import Masks
from aegaeon_worker.grammar.waiting import compiled
from aegaeon_worker.kv.errors import PoolTooSmall
from aegaeon_worker.kv.memory_manager import MemoryManager
from aegaeon_worker.parallel.errors import GroupBroken


@dataclass
class StepResult:
    """What one step did: its event, and members that failed."""

    batch: StepBatch
    failed: list[SequenceFailed]


class TurnRunner:
    """Runs the members of one turn, as many at a time as memory and limits allow.

    Members are taken in order of precedence and none is passed over, so a long one cannot starve.
    When the batch outgrows the device, the last in precedence gives way and comes back later.
    """

    def __init__(
        self,
        turn_id: int,
        model: InstalledModel,
        memory: MemoryManager,
        limits: StepLimits,
        max_sequences: int,
        masks: Masks,
    ) -> None:
        self._turn_id = turn_id
        self._model = model
        self._memory = memory
        self._limits = limits
        self._max_sequences = max_sequences
        self._masks = masks

    def step(self, members: Seq[Sequence]) -> StepResult:
        """One forward pass over the members that fit; at least one gets on, or fails."""
        start = time.perf_counter_ns()
        result = StepResult(StepBatch(self._turn_id), [])
        chunks = self._fit(compiled(members, result.failed), result)
        if chunks:
            self._advance(chunks, result)
        result.batch.step_time_ns = time.perf_counter_ns() - start
        return result

    def _fit(self, members: Seq[Sequence], result: StepResult) -> list[Chunk]:
        """Give room to as many members as there is, and plan the step over them."""
        running: list[Sequence] = []
        waiting = deque(members[: self._max_sequences])
        while waiting:
            sequence = waiting.popleft()
            try:
                while not self._memory.grow(sequence.handle, len(sequence.tokens)) and waiting:
                    # What is left is held by members: those behind this one give way.
                    self._memory.preempt(waiting.pop().handle)
            except PoolTooSmall as error:
                result.failed.append(SequenceFailed(sequence.handle, error))
                continue
            if self._memory.grow(sequence.handle, len(sequence.tokens)):
                # The truth is in memory: less than computed if the sequence lost its KV.
                sequence.num_computed = self._memory.stored_tokens(sequence.handle)
                running.append(sequence)
        return plan_step(running, self._limits)

    def _advance(self, chunks: Seq[Chunk], result: StepResult) -> None:
        try:
            choices = self._forward(chunks)
        except GroupBroken:
            raise  # no fault of a sequence
        except Exception as error:
            self._isolate(chunks, error, result)
            return
        for chunk, choice in zip(chunks, choices, strict=True):
            if isinstance(choice, EngineError):
                result.failed.append(SequenceFailed(chunk.sequence.handle, choice))
                continue
            try:
                self._record(chunk, choice, result.batch)
            except EngineError as error:
                result.failed.append(SequenceFailed(chunk.sequence.handle, error))

    def _forward(self, chunks: Seq[Chunk]) -> list[Choice | EngineError | None]:
        """Next token of every chunk that reaches its sequence's end, or why there is none; None
        for the others."""
        tables = [self._memory.block_table(chunk.sequence.handle) for chunk in chunks]
        step = build_input(chunks, tables, self._model.memory.kv.tensor)
        complete = [chunk.sequence for chunk in chunks if chunk.completes]
        masks = self._masks.begin(complete)
        logits = self._model.served.forward(step)
        choices = iter(choose_tokens(logits, complete, masks))
        return [next(choices) if chunk.completes else None for chunk in chunks]

    def _isolate(self, chunks: Seq[Chunk], error: Exception, result: StepResult) -> None:
        """A pass failed: repeat it one by one, so that only the sequence at fault fails."""
        if len(chunks) == 1:
            sequence = chunks[0].sequence
            handle = sequence.handle
            log_failure(sequence, "the forward pass", error)
            reason = EngineError(f"the forward pass failed: {type(error).__name__}: {error}")
            result.failed.append(SequenceFailed(handle, reason))
            return
        for chunk in chunks:
            self._advance([chunk], result)

    def _record(self, chunk: Chunk, choice: Choice | None, batch: StepBatch) -> None:
        sequence = chunk.sequence
        if sequence.num_pending == 1 and sequence.num_generated > 0:
            batch.decode_sequences += 1
        else:
            batch.prefill_tokens += chunk.num_tokens
        sequence.num_computed += chunk.num_tokens
        batch.context_tokens += sequence.num_computed
        self._memory.commit(sequence.handle, sequence.num_computed)
        if choice is not None:
            token, probabilities = choice
            reason = sequence.append(token)
            batch.add(sequence.handle, token, reason, probabilities)


def ended(batch: StepBatch) -> list[int]:
    """Handles that ended in a step."""
    rows = zip(batch.handles, batch.finish_reasons, strict=True)
    return [handle for handle, reason in rows if reason is not FinishReason.NONE]


def going_on(batch: StepBatch) -> list[int]:
    """Handles that got a token in a step and did not end with it."""
    rows = zip(batch.handles, batch.finish_reasons, strict=True)
    return [handle for handle, reason in rows if reason is FinishReason.NONE]
