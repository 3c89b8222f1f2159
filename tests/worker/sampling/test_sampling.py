"""Every part of sampling against plain Python, and draws against exact probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from aegaeon_worker.sampling import filters
from aegaeon_worker.sampling.adjustments import PenalizedRow, add_bias, penalize
from aegaeon_worker.sampling.draw import best, draw, total
from aegaeon_worker.sampling.filters import Filters, kept_weights
from aegaeon_worker.sampling.parameters import SamplingParameters
from aegaeon_worker.sampling.randomness import streams, uniforms
from aegaeon_worker.sampling.token_counts import TokenCounts
from tests.worker.sampling.reference import adjusted, distribution, drawn, uniform

SEEDS = st.integers(-(2**63), 2**63 - 1)
#: Coarse, so that scores are often equal, and far enough from one another for float32.
LOGITS = st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=1, max_size=300)


@given(st.lists(st.tuples(SEEDS, st.integers(0, 2**31), st.integers(-2000, 2**18)), min_size=1))
@example([(0, 0, 0), (-1, 2**31, -1), (-(2**63), 5, 7)])
def test_uniforms_are_those_of_splitmix(
    device: torch.device, keys: list[tuple[int, int, int]]
) -> None:
    seeds, positions, indexes = (
        torch.tensor(values, device=device) for values in zip(*keys, strict=True)
    )
    found = uniforms(streams(seeds, positions), indexes).tolist()
    assert found == [uniform(*key) for key in keys]
    assert all(0 < value < 1 for value in found)


def test_uniforms_of_neighbours_are_uniform_and_unrelated() -> None:
    seeds = torch.arange(100).repeat_interleave(100)
    starts = streams(seeds, torch.arange(100).repeat(100))
    cube = uniforms(starts[:, None], torch.arange(-10, 10)).view(100, 100, 20)
    counts = torch.histc(cube, 100, 0, 1)
    # 99 degrees of freedom: mean 99, standard deviation 14.1.
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 170
    for one, other in (
        (cube[:-1], cube[1:]),
        (cube[:, :-1], cube[:, 1:]),
        (cube[..., :-1], cube[..., 1:]),
    ):
        pair = torch.stack((one.flatten(), other.flatten()))
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.012


@given(st.data(), st.integers(1, 400), st.integers(1, 4))
def test_the_best_token_is_the_lowest_id_among_equals(
    device: torch.device, data: st.DataObject, vocab: int, count: int
) -> None:
    row = st.lists(st.integers(-2, 2).map(float), min_size=vocab, max_size=vocab)
    rows = [data.draw(row) for _ in range(count)]
    tokens, values = best(torch.tensor(rows, device=device))
    assert values.tolist() == [max(row) for row in rows]
    assert tokens.tolist() == [row.index(max(row)) for row in rows]


def test_no_rows_have_no_best_token(device: torch.device) -> None:
    tokens, values = best(torch.zeros(0, 300, device=device))
    assert tokens.tolist() == values.tolist() == []


@st.composite
def parameters(draw_value: st.DrawFn) -> SamplingParameters:
    return SamplingParameters(
        temperature=draw_value(st.sampled_from([0.1, 0.5, 1.0, 1.7, 2.0])),
        top_k=draw_value(st.sampled_from([0, 1, 2, 5, 40, 1000])),
        top_p=draw_value(st.sampled_from([0.011, 0.31, 0.77, 0.953, 1.0])),
        min_p=draw_value(st.sampled_from([0.0, 0.013, 0.22, 1.0])),
    )


def scores_of(rows: list[list[float]], sampling: list[SamplingParameters]) -> torch.Tensor:
    logits = torch.tensor(rows)
    logits -= logits.amax(-1, keepdim=True)
    return logits / torch.tensor([p.temperature for p in sampling])[:, None]


@given(st.data(), st.integers(1, 60), st.integers(1, 3), st.sampled_from([1, 3, 512]))
def test_filters_leave_what_the_reference_leaves(
    device: torch.device, data: st.DataObject, vocab: int, count: int, candidates: int
) -> None:
    row = st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=vocab, max_size=vocab)
    rows = [data.draw(row) for _ in range(count)]
    sampling = [data.draw(parameters()) for _ in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "_CANDIDATES", candidates)
        some = Filters.of(sampling, vocab, device)
        weights = kept_weights(scores_of(rows, sampling).to(device), some).double()
    found = weights / weights.sum(-1, keepdim=True)
    for logits, p, probabilities in zip(rows, sampling, found.tolist(), strict=True):
        expected = distribution(logits, p)
        assert probabilities == pytest.approx(expected, abs=1e-5)
        assert [x > 0 for x in probabilities] == [x > 0 for x in expected]


@given(
    LOGITS,
    st.lists(st.integers(0, 299), max_size=30),
    st.lists(st.integers(0, 299), max_size=30),
    st.dictionaries(st.integers(0, 299), st.integers(-100, 100), max_size=9),
    st.sampled_from([0.01, 0.9, 1.0, 1.3, 100.0]),
    st.sampled_from([-2.0, 0.0, 0.7]),
    st.sampled_from([-1.5, 0.0, 2.0]),
)
def test_bias_and_penalties_are_those_of_the_reference(
    device: torch.device,
    logits: list[float],
    prompt: list[int],
    generated: list[int],
    bias: dict[int, int],
    repetition: float,
    frequency: float,
    presence: float,
) -> None:
    vocab = len(logits)
    prompt, generated = [t % vocab for t in prompt], [t % vocab for t in generated]
    sampling = SamplingParameters(
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        logit_bias=tuple({t % vocab: float(value) for t, value in bias.items()}.items()),
    )
    # Another row before and behind: nothing of theirs may change.
    batch = torch.tensor([logits] * 3, device=device)
    counts = TokenCounts(prompt)
    for end in range(len(generated) + 1):  # as it grows
        counts.update([*prompt, *generated[:end]], len(prompt))
    add_bias(batch, [(1, sampling)])
    penalize(batch, [PenalizedRow(1, sampling, counts)])
    assert batch[1].tolist() == pytest.approx(adjusted(logits, sampling, prompt, generated), 1e-5)
    assert batch[0].tolist() == batch[2].tolist() == torch.tensor(logits).tolist()


@given(LOGITS, SEEDS, st.integers(0, 10_000))
def test_a_draw_is_that_of_the_reference(
    device: torch.device, logits: list[float], seed: int, position: int
) -> None:
    scores = torch.tensor([logits], device=device)
    weights = torch.where(scores < 0, 0.0, scores.exp())
    assume(float(weights.sum()) > 0)
    start = (torch.tensor([value], device=device) for value in (seed, position))
    token = int(draw(weights, *start))
    assert token == drawn(weights[0].tolist(), seed, position)
    assert weights[0, token] > 0
    assert float(total(weights)) == pytest.approx(float(weights.double().sum()))


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParameters(temperature=1.0),
        SamplingParameters(temperature=0.6),
        SamplingParameters(temperature=2.0, top_k=20),
        SamplingParameters(temperature=1.3, top_p=0.8),
        SamplingParameters(temperature=1.0, min_p=0.1),
        SamplingParameters(temperature=1.6, top_k=60, top_p=0.9, min_p=0.02),
    ],
    ids=["temperature", "cold", "top_k", "top_p", "min_p", "all"],
)
def test_draws_are_distributed_as_the_reference_says(sampling: SamplingParameters) -> None:
    draws, vocab = 40_000, 200
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(3)) * 2
    expected = torch.tensor(distribution(logits.tolist(), sampling), dtype=torch.float64) * draws
    scores = scores_of([logits.tolist()], [sampling])
    weights = kept_weights(scores, Filters.of([sampling], vocab, scores.device))
    tokens = draw(
        weights.expand(draws, -1).contiguous(), torch.full((draws,), 1234), torch.arange(draws)
    )
    counts = torch.bincount(tokens, minlength=vocab).double()
    assert float(counts[expected == 0].sum()) == 0
    # Rare tokens together, as the test wants at least five expected in each class.
    often = expected >= 5
    seen = torch.cat((counts[often], counts[~often].sum()[None]))
    wanted = torch.cat((expected[often], expected[~often].sum()[None]))
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    degrees = len(wanted) - 1
    # Five standard deviations; the seed is fixed, so that it holds for ever or never.
    assert statistic < degrees + 5 * math.sqrt(2 * degrees)
