"""One token per row: the best one, or one drawn by inverting the cumulative distribution."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

#: Tokens that are looked at together, which is far faster than to search whole vocabularies.
#: Weights are summed in float32 within chunks, and in float64 across them.
_CHUNK = 128


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest logit per row of ``logits`` [R, V]: its token int64 [R], the lowest id among
    equals, and its value [R]. One that is no number counts as the highest."""
    chunks = _chunks(logits, -torch.inf)
    value, chunk = chunks.amax(-1).max(-1)
    rows = torch.arange(len(logits), device=logits.device)
    return chunk * _CHUNK + chunks[rows, chunk].argmax(-1), value


def draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Tokens int64 [R] with probabilities in proportion to ``weights`` [R, V], not negative.

    ``uniforms`` float64 [R] are in [0, 1). The chunk of the vocabulary is found first, then the
    token in it; one of weight 0 is never drawn.
    """
    chunks = _chunks(weights)
    sums = chunks.sum(-1).cumsum(-1, dtype=torch.float64)
    goal = uniforms[:, None] * sums[:, -1:]
    # The first whose sum is above the goal; beyond the last only where weights are no numbers.
    chunk = torch.searchsorted(sums, goal, right=True).clamp(max=sums.shape[1] - 1)
    before = torch.where(chunk > 0, sums.gather(1, (chunk - 1).clamp(min=0)), 0.0)
    rows = torch.arange(len(weights), device=weights.device)
    inner = chunks[rows, chunk.squeeze(1)].cumsum(-1, dtype=torch.float64)
    # The two sums of a chunk differ by their rounding.
    goal = torch.minimum(goal - before, inner[:, -1:] * (1 - 2.0**-52))
    token = chunk * _CHUNK + torch.searchsorted(inner, goal, right=True)
    return token.squeeze(1).clamp(max=weights.shape[1] - 1)


def total(weights: torch.Tensor) -> torch.Tensor:
    """Sums of the rows of ``weights`` [R, V], in float64 [R]."""
    return _chunks(weights).sum(-1).sum(-1, dtype=torch.float64)


def _chunks(values: torch.Tensor, padding: float = 0.0) -> torch.Tensor:
    rest = -values.shape[1] % _CHUNK
    padded = F.pad(values, (0, rest), value=padding) if rest else values
    return padded.view(len(values), padded.shape[1] // _CHUNK, _CHUNK)
