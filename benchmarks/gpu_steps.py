"""Decode steps of a random model, issued and taken in as an engine does it."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence as Seq

from aegaeon_worker.engine.commands import SequenceSpec, StopConditions
from aegaeon_worker.engine.cuda_execution import CudaGraphs
from aegaeon_worker.engine.decode_steps import DecodeSteps
from aegaeon_worker.engine.sampler import Choice, PendingChoices
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.engine.step_plan import StepTokens
from benchmarks.gpu_limits import event_ms
from benchmarks.gpu_models import DEVICE, RandomModel

_ENDLESS = StopConditions(1 << 30, 0, frozenset(), 1 << 30)


def decode_steps(model: RandomModel, *, max_batch: int, max_tokens: int) -> DecodeSteps:
    """Those of ``model``, nothing recorded yet."""
    step = model.native.decode_step
    assert step is not None
    return DecodeSteps(
        step,
        model.kv,
        CudaGraphs(DEVICE),
        max_batch=max_batch,
        max_tokens=max_tokens,
        vocab_size=model.native.vocab_size,
    )


class DecodeRun:
    """Greedy decoding of one batch, one step ahead."""

    def __init__(
        self, steps: DecodeSteps, tokens: Seq[int], context: int, tables: list[list[int]]
    ) -> None:
        """``tokens`` follow ``context`` tokens each, whose KV is in the blocks of ``tables``."""
        self._steps = steps
        self._tables = tables
        self._sequences = [
            Sequence(SequenceSpec(row, "", [0] * context, [token], _ENDLESS))
            for row, token in enumerate(tokens)
        ]
        for sequence in self._sequences:
            sequence.num_computed = context
        self._rows = {sequence: row for row, sequence in enumerate(self._sequences)}
        self._under_way: deque[PendingChoices] = deque()
        steps.begin_turn()

    def issue(self) -> None:
        """Issue the next step."""
        before = None
        if self._under_way:
            before = StepTokens(self._under_way[-1].tokens, self._rows)
        self._under_way.append(
            self._steps.issue(self._sequences, self._tables, before, replays=True)
        )
        for sequence in self._sequences:
            sequence.num_computed += 1
            sequence.num_under_way += 1

    def take_in(self) -> list[int]:
        """Wait for the tokens of the oldest step under way."""
        chosen = []
        for sequence, choice in zip(self._sequences, self._under_way.popleft().wait(), strict=True):
            assert isinstance(choice, Choice), choice
            sequence.num_under_way -= 1
            sequence.tokens.append(choice.token_id)
            chosen.append(choice.token_id)
        return chosen

    def replay_ms(self, count: int) -> float:
        """Time of a recorded step on the device, from ``count`` in a row that nobody waits for.

        All of them are the step that was issued last, at least the third.
        """
        size = next(s for s, best in sorted(self._steps.recorded) if s >= len(self._tables))
        replay = self._steps.recording(size, best=True)
        times = event_ms(lambda: [replay() for _ in range(count)], 3)
        return statistics.median(times) / count

    def run(self, count: int) -> list[list[int]]:
        """Issue ``count`` steps, each while the one before runs; the tokens of all of them."""
        chosen = []
        for number in range(count):
            self.issue()
            if number:
                chosen.append(self.take_in())
        chosen.append(self.take_in())
        return chosen
