"""One token per row, drawn by inverting the cumulative distribution."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

#: Weights that are summed in float32, side by side; sums of them are in float64.
_CHUNK = 128


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


def _chunks(weights: torch.Tensor) -> torch.Tensor:
    rest = -weights.shape[1] % _CHUNK
    padded = F.pad(weights, (0, rest)) if rest else weights
    return padded.view(len(weights), -1, _CHUNK)
