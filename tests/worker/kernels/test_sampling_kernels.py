"""Kernels that draw tokens and apply penalties do what torch does."""

from __future__ import annotations

import pytest
import torch

from aegaeon_worker.kernels.draws import draw_tokens
from aegaeon_worker.kernels.token_penalties import count_and_penalize
from aegaeon_worker.sampling.adjustments import (
    PenalizedRow,
    penalize,
    penalize_counted,
    penalty_factors,
)
from aegaeon_worker.sampling.draw import draw
from aegaeon_worker.sampling.parameters import SamplingParameters
from aegaeon_worker.sampling.token_counts import TokenCounts

_CHUNK = 128


@pytest.mark.parametrize("vocab", [1, 127, 128, 1000, 5000])
def test_tokens_drawn_in_one_launch_are_those_drawn_step_by_step(
    vocab: int, device: torch.device
) -> None:
    rows = 6
    weights = torch.randn(rows, vocab).exp()
    weights[1] = (weights[1] > 1).float()
    weights[2] = 0.0
    weights[2, vocab // 2] = 1e-30  # the only one that can come
    weights[3, ::2] = 0.0
    seeds = torch.tensor([0, -1, 2**63 - 1, -(2**63), 5, 123456789])
    positions = torch.tensor([0, 1, 2**31, 77, 0, 40_000])
    padded = torch.nn.functional.pad(weights, (0, -vocab % _CHUNK))
    sums = padded.view(rows, -1, _CHUNK).sum(-1)
    found = draw_tokens(*(t.to(device) for t in (weights, sums, seeds, positions)), _CHUNK)
    assert found.tolist() == draw(weights, seeds, positions).tolist()
    assert found[2] == vocab // 2


def test_weights_that_are_no_numbers_draw_a_token_that_exists(device: torch.device) -> None:
    weights = torch.full((2, 300), torch.nan, device=device)
    sums = torch.full((2, 3), torch.nan, device=device)
    zeros = torch.zeros(2, dtype=torch.int64, device=device)
    assert all(0 <= token < 300 for token in draw_tokens(weights, sums, zeros, zeros, _CHUNK))


KINDS = [
    SamplingParameters(),
    SamplingParameters(repetition_penalty=1.3),
    SamplingParameters(frequency_penalty=0.7, presence_penalty=-1.5),
    SamplingParameters(repetition_penalty=0.9, frequency_penalty=-0.3, presence_penalty=0.1),
]


def test_penalties_are_the_same_whoever_has_counted(device: torch.device) -> None:
    vocab, rows = 3000, len(KINDS)
    generator = torch.Generator().manual_seed(2)
    prompts, generated = (
        torch.randint(0, 20, (rows, count), generator=generator).mul(149).tolist()
        for count in (9, 12)
    )
    counts = torch.zeros(rows + 1, vocab, dtype=torch.int32)
    counts[0] = 12345  # of a row without penalties: left from others
    for row, (kind, prompt) in enumerate(zip(KINDS, prompts, strict=True)):
        if kind.repetition_penalty != 1.0:
            counts[row, prompt] = 1
    on_device, factors = counts.clone().to(device), penalty_factors(KINDS)
    for end in range(len(generated[0])):
        logits = torch.randn(rows, vocab, generator=generator)
        logits[:, ::7] = -torch.inf
        # What was generated last is known to the device alone.
        tables = []
        for row, kind in enumerate(KINDS):
            table = TokenCounts(prompts[row] if kind.repetition_penalty != 1.0 else ())
            table.update(generated[row][:end], 0)
            tables.append(PenalizedRow(row, kind, table, rows - 1 - row))
        newest = torch.tensor([tokens[end] for tokens in generated])
        expected, plain, found = logits.clone(), logits.clone(), logits.clone().to(device)
        penalize(expected, tables, newest.flip(0))
        penalize_counted(plain, counts, newest, factors)
        count_and_penalize(found, on_device, newest.to(device), factors.to(device))
        assert torch.equal(plain, expected)
        assert torch.equal(found.cpu(), expected)
        assert torch.equal(on_device.cpu(), counts)
        for row in tables:
            row.counts.update(generated[row.row][: end + 1], 0)
        known = logits.clone()
        penalize(known, [entry._replace(source=None) for entry in tables])
        assert torch.equal(known, expected)
    assert int(counts[1:rows].sum()) > 0
    assert not counts[rows].any()


def test_no_newest_token_leaves_the_counts_alone(device: torch.device) -> None:
    logits, counts = torch.ones(2, 50), torch.zeros(2, 50, dtype=torch.int32)
    counts[0, 7] = 5
    before = counts.clone()
    counts, logits = counts.to(device), logits.to(device)
    none = torch.tensor([-1, -1], device=device)
    factors = penalty_factors([SamplingParameters(frequency_penalty=0.25)] * 2).to(device)
    count_and_penalize(logits, counts, none, factors)
    assert torch.equal(counts.cpu(), before)
    assert logits[0, 7] == 0.5
    assert int((logits != 1).sum()) == 1
