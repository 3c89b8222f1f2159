"""What recorded sampling uploads, and when."""

from __future__ import annotations

import pytest
import torch

from aegaeon_worker.engine import recorded_sampling
from aegaeon_worker.engine.commands import SequenceSpec, StopConditions
from aegaeon_worker.engine.recorded_sampling import RecordedSampling, StepBuffers
from aegaeon_worker.engine.sampler import Choice, choose_tokens
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.sampling.adjustments import penalize_counted
from aegaeon_worker.sampling.parameters import SamplingParameters
from tests.worker.engine.pace import PlainRecorder

VOCAB = 300
MAX_BATCH = 8
KINDS = [
    None,
    SamplingParameters(top_k=200),  # greedy: nothing is filtered
    SamplingParameters(temperature=0.7, top_k=5, seed=1),
    SamplingParameters(temperature=1.0, frequency_penalty=0.8, repetition_penalty=1.1, seed=2),
    SamplingParameters(temperature=1.0, top_p=0.5, min_p=0.01, seed=3),
]


class Batch:
    """Sequences that decode one step ahead of what the host knows."""

    def __init__(self, kinds: list[SamplingParameters | None]) -> None:
        device = torch.device("cpu")
        self.sampling = RecordedSampling(
            PlainRecorder(), device, max_batch=MAX_BATCH, vocab_size=VOCAB
        )
        self.sampling.begin_turn()
        self.sequences = [make_sequence(row, kind) for row, kind in enumerate(kinds)]
        self.under_way = {sequence: 40 + sequence.handle for sequence in self.sequences}
        self._tokens = torch.tensor([*self.under_way.values()] + [0] * MAX_BATCH)
        self._buffers = [self._make_buffers(count + 1) for count in range(MAX_BATCH)]
        self._rows = {sequence: row for row, sequence in enumerate(self.sequences)}
        self._generator = torch.Generator().manual_seed(1)

    def _make_buffers(self, size: int) -> StepBuffers:
        found = torch.zeros(size, 2, dtype=torch.float64)
        staged = torch.full((4, size), -1)
        return StepBuffers(staged, self._tokens, found, torch.zeros(size, VOCAB))

    def step(self) -> None:
        """Choose tokens, which must be those that are chosen when all tokens are known."""
        count = len(self.sequences)
        for sequence in self.sequences:
            sequence.num_under_way = 1
        staged, _, found, used = buffers = self._buffers[count]
        staged[1, :count] = torch.tensor([self._rows[sequence] for sequence in self.sequences])
        staged[2, :count] = torch.tensor([s.num_tokens - 1 for s in self.sequences])
        logits = torch.randn(used.shape, generator=self._generator)
        used.copy_(logits)
        assert self.sampling.prepare(self.sequences)
        self.sampling.choose(buffers)
        for sequence in self.sequences:
            sequence.tokens.append(self.under_way[sequence])
            sequence.num_under_way = 0
        choices = choose_tokens(logits[:count].clone(), self.sequences).wait()
        expected = [choice.token_id for choice in choices if isinstance(choice, Choice)]
        assert self._tokens[:count].tolist() == expected
        assert found[:count, 0].tolist() == expected
        self.under_way = dict(zip(self.sequences, expected, strict=True))
        self._rows = {sequence: row for row, sequence in enumerate(self.sequences)}


def make_sequence(handle: int, kind: SamplingParameters | None) -> Sequence:
    stop = StopConditions(1000, 0, frozenset(), 10_000)
    prompt = [(7 * handle + n) % VOCAB for n in range(20)]
    return Sequence(SequenceSpec(handle, "m", prompt, [3 + handle], stop, None, kind))


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was uploaded for sampling, in order."""
    made: list[str] = []

    def counting(name):  # type: ignore[no-untyped-def]
        real = getattr(recorded_sampling, name)

        def call(*arguments):  # type: ignore[no-untyped-def]
            made.append(name)
            return real(*arguments)

        monkeypatch.setattr(recorded_sampling, name, call)

    counting("write")
    counting("upload")
    return made


def test_parameters_and_counts_are_uploaded_when_the_batch_changes_and_never_else(
    uploads: list[str],
) -> None:
    batch = Batch(KINDS)
    batch.step()
    assert sorted(set(uploads)) == ["upload", "write"]
    uploads.clear()
    for _ in range(12):
        batch.step()
    assert uploads == []
    batch.sequences.pop(0)
    batch.step()
    assert sorted(set(uploads)) == ["upload", "write"]
    uploads.clear()
    for _ in range(3):
        batch.step()
    assert uploads == []


def test_in_another_turn_tokens_are_counted_anew(uploads: list[str]) -> None:
    batch = Batch(KINDS)
    batch.step()
    counts = batch.sampling._counts()
    counts.fill_(9)
    batch.sampling.begin_turn()
    uploads.clear()
    for _ in range(4):
        batch.step()
    assert "write" not in uploads
    assert "upload" in uploads


def test_a_step_that_fails_leaves_no_count_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(KINDS)
    for _ in range(3):
        batch.step()

    def count_and_fail(*arguments: torch.Tensor) -> None:
        penalize_counted(*arguments)
        raise RuntimeError("meant to fail")

    with monkeypatch.context() as patch:
        patch.setattr(recorded_sampling, "penalize_counted", count_and_fail)
        with pytest.raises(RuntimeError, match="meant"):
            batch.step()
    for _ in range(3):
        batch.step()


@pytest.mark.parametrize(
    "kind",
    [
        SamplingParameters(logprobs=0),
        SamplingParameters(temperature=1.0, logit_bias=((1, 2.0),)),
    ],
)
def test_a_batch_of_which_more_is_asked_is_not_recorded(kind: SamplingParameters) -> None:
    batch = Batch([*KINDS, kind])
    assert not batch.sampling.prepare(batch.sequences)
    batch.sequences.pop()
    assert batch.sampling.prepare(batch.sequences)


def test_a_batch_that_must_not_end_yet_is_not_recorded_until_it_may() -> None:
    batch = Batch(KINDS[2:3])
    batch.sequences[0].stop = StopConditions(1000, 2, frozenset({5}), 10_000)
    assert not batch.sampling.prepare(batch.sequences)
    batch.sequences[0].tokens.append(9)
    assert batch.sampling.prepare(batch.sequences)
