"""Draws of a batch: from logits to tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aegaeon_worker.sampling.draw import draw
from aegaeon_worker.sampling.filters import Filters, kept_weights


@dataclass(frozen=True)
class Draws:
    """What the draws of R rows depend on, beside their logits; all of it on the device."""

    temperature: torch.Tensor
    """float32 [R]"""
    filters: Filters
    seeds: torch.Tensor
    """int64 [R]"""
    positions: torch.Tensor
    """int64 [R]: of the tokens that are drawn, in their sequences."""


def drawn_tokens(logits: torch.Tensor, highest: torch.Tensor, draws: Draws) -> torch.Tensor:
    """A token per row of ``logits`` [R, V], which is consumed; ``highest`` [R] is of each row."""
    # The highest first: a low temperature may then reach -inf, but never inf.
    scores = logits.sub_(highest[:, None]).div_(draws.temperature[:, None])
    return draw(kept_weights(scores, draws.filters), draws.seeds, draws.positions)
