"""Narrowing finds the score at which sorted weights reach a goal."""

from __future__ import annotations

import pytest
import torch

from aegaeon_worker.kernels.score_floors import lower_floors
from aegaeon_worker.sampling import filters
from aegaeon_worker.sampling.filters import Filters, kept_weights
from aegaeon_worker.sampling.parameters import SamplingParameters


@pytest.mark.parametrize("vocab", [1, 7, 2048, 5000])
@pytest.mark.parametrize("coarse", [False, True])
def test_floors_are_where_the_goal_is_reached(
    vocab: int, coarse: bool, device: torch.device
) -> None:
    rows = 8
    scores = torch.randn(rows, vocab) * 3
    if coarse:
        # Many equal scores, and some that are impossible.
        scores = scores.round()
        scores[:, ::5] = -torch.inf
        scores[:, -1] = scores.amax(1).clamp(min=0)
    scores -= scores.amax(1, keepdim=True)
    shares = torch.tensor([0.9, 1e-6, 0.5, 0.999, 0.3, 0.7, 0.1, 0.9], dtype=torch.float64)
    goals = shares * scores.double().exp().sum(1)
    wanted = torch.tensor([True] * (rows - 1) + [False])
    floors = torch.full((rows,), 7.0, device=device)
    lower_floors(floors, scores.to(device), goals.to(device), wanted.to(device))
    ordered = scores.sort(1, descending=True).values
    first = (ordered.double().exp().cumsum(1) < goals[:, None]).sum(1)
    expected = ordered.gather(1, first[:, None]).squeeze(1)
    assert floors[:-1].cpu().tolist() == expected[:-1].tolist()
    assert floors[-1] == 7.0


@pytest.mark.parametrize("candidates", [1, 5, 64])
def test_filters_on_a_gpu_keep_what_filters_on_a_cpu_keep(
    candidates: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [
        SamplingParameters(),
        SamplingParameters(top_k=40),
        SamplingParameters(top_p=0.9),
        SamplingParameters(top_p=0.999, top_k=3),
        SamplingParameters(min_p=0.05),
        SamplingParameters(min_p=0.001, top_p=0.95),
        SamplingParameters(min_p=0.9, top_k=50, top_p=0.7),
    ]
    scores = torch.randn(len(kinds), 5000)
    scores -= scores.amax(1, keepdim=True)
    vocab = scores.shape[1]
    expected = kept_weights(scores, Filters.of(kinds, vocab, scores.device)) > 0
    # Too few to be sure of in most rows.
    monkeypatch.setattr(filters, "_CANDIDATES", candidates)
    monkeypatch.setattr(filters, "_waits", lambda scores: False)
    kept = kept_weights(scores.to(device), Filters.of(kinds, vocab, device)) > 0
    assert torch.equal(kept.cpu(), expected)
