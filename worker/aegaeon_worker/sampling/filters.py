"""Which tokens may be drawn: min-p, then top-k, then top-p, without sorting vocabularies.

Every filter is a lowest score per row. What is kept therefore does not depend on the order in which
a device sorts equal scores, nor on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import torch

from aegaeon_worker.device.host_link import upload
from aegaeon_worker.sampling.draw import total
from aegaeon_worker.sampling.parameters import SamplingParameters

#: Highest scores to look at for top-p. They nearly always hold its share of the probability; for
#: rows where they do not, so many times as many are looked at, again and again.
_CANDIDATES = 512
_WIDENING = 16


class FilterKind(NamedTuple):
    """What filters a batch has: enough to know what to compute, without looking at their values."""

    cuts: bool = False
    """Some have min-p."""
    width: int = 0
    """Highest scores to look at, a power of two; 0 where neither top-k nor top-p is there."""
    nucleus: bool = False
    """Some have top-p."""

    @classmethod
    def of(cls, parameters: Seq[SamplingParameters], vocab: int) -> FilterKind:
        """That of a batch which draws from ``vocab`` tokens."""
        width = 0
        for sampling in parameters:
            if top_k := limit(sampling, vocab):
                width = max(width, top_k)
            elif sampling.top_p < 1:
                width = max(width, _CANDIDATES)
        return cls(
            any(p.min_p > 0 for p in parameters),
            1 << (width - 1).bit_length() if width else 0,
            any(p.top_p < 1 for p in parameters),
        )


@dataclass(frozen=True)
class Filters:
    """Those of R rows, N of which have top-k or top-p."""

    kind: FilterKind
    floor: torch.Tensor
    """float32 [R]: logarithms of min-p, the lowest scores that are kept."""
    top_k: torch.Tensor
    """int64 [N]; 0 keeps all."""
    top_p: torch.Tensor
    """float64 [N]; 1 keeps all."""
    ranked: torch.Tensor | None
    """int64 [N]: the rows of the two before; None: all rows, some of which may keep all."""

    @classmethod
    def of(cls, parameters: Seq[SamplingParameters], vocab: int, device: torch.device) -> Filters:
        """Those of a batch, whose values are uploaded."""
        rows = [n for n, p in enumerate(parameters) if limit(p, vocab) or p.top_p < 1]
        some = [parameters[row] for row in rows]
        return cls(
            FilterKind.of(parameters, vocab),
            upload(floors(parameters), device),
            upload([limit(p, vocab) for p in some], device, torch.int64),
            upload([p.top_p for p in some], device, torch.float64),
            upload(rows, device, torch.int64) if len(rows) < len(parameters) else None,
        )


def floors(parameters: Seq[SamplingParameters]) -> torch.Tensor:
    """Logarithms of min-p, float32 [R] on the host."""
    return torch.tensor([p.min_p for p in parameters], dtype=torch.float64).log().float()


def kept_weights(scores: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Weights [R, V] of the tokens in the draw, 0 for those that the filters cut.

    ``scores`` [R, V] are their logarithms, with 0 as the highest of each row.
    """
    kind, floor, ranked = filters.kind, filters.floor, filters.ranked
    # All of them first: the exponential of -inf is slow.
    weights = scores.exp()
    if not kind.width:
        return _cut(weights, scores, floor) if kind.cuts else weights
    rows = slice(None) if ranked is None else ranked
    best = scores[rows].topk(min(kind.width, scores.shape[1])).values
    least = torch.maximum(floor[rows], _last_kept(best, filters.top_k))
    floor = least if ranked is None else floor.index_copy(0, ranked, least)
    weights = _cut(weights, scores, floor)
    if kind.nucleus:
        least = _nucleus(scores[rows], weights[rows], best, least, filters)
        floor = least if ranked is None else floor.index_copy(0, ranked, least)
        weights = _cut(weights, scores, floor)
    return weights


def limit(parameters: SamplingParameters, vocab: int) -> int:
    """Its top-k; 0 where that keeps all of ``vocab`` tokens."""
    return parameters.top_k if 0 < parameters.top_k < vocab else 0


def _cut(weights: torch.Tensor, scores: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    return torch.where(scores >= floor[:, None], weights, 0.0)


def _last_kept(best: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """The lowest score that top-k leaves, per row."""
    floor = best.gather(1, (top_k - 1).clamp(min=0)[:, None]).squeeze(1)
    return torch.where(top_k > 0, floor, -torch.inf)


def _nucleus(
    scores: torch.Tensor,
    weights: torch.Tensor,
    best: torch.Tensor,
    floor: torch.Tensor,
    filters: Filters,
) -> torch.Tensor:
    """The lowest score that top-p leaves of ``weights``, per row; at least ``floor``."""
    shares = filters.top_p
    goal = shares * total(weights)
    # What was cut before stands behind what reaches the goal.
    found, reached = _first_above(best, goal)
    # Where top-k leaves more than `best` holds, the rest equals its last.
    unsure = ~reached & (filters.top_k == 0) & (shares < 1)
    if best.shape[1] < scores.shape[1]:
        _look_further(found, reached, scores, goal, unsure, best.shape[1])
    return torch.where(reached & (shares < 1), torch.maximum(found, floor), floor)


def _look_further(
    found: torch.Tensor,
    reached: torch.Tensor,
    scores: torch.Tensor,
    goal: torch.Tensor,
    unsure: torch.Tensor,
    width: int,
) -> None:
    """Complete ``found`` and ``reached`` in the rows that are ``unsure`` after ``width`` scores."""
    if not _waits(scores):
        # Triton is installed with PyTorch for CUDA only.
        from aegaeon_worker.kernels.score_floors import lower_floors

        lower_floors(found, scores, goal, unsure)
        reached |= unsure
        return
    vocab = scores.shape[1]
    while width < vocab and bool(unsure.any()):
        width = min(_WIDENING * width, vocab)
        rows = unsure.nonzero().squeeze(1)
        found[rows], reached[rows] = _first_above(scores[rows].topk(width).values, goal[rows])
        unsure &= ~reached


def _waits(scores: torch.Tensor) -> bool:
    """Whether it costs nothing to look at results before all of them are there."""
    return scores.device.type == "cpu"


def _first_above(best: torch.Tensor, goal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first of the descending scores ``best`` [R, W] at which their weights reach ``goal`` [R],
    and whether they do."""
    first = (best.exp().cumsum(-1, dtype=torch.float64) < goal[:, None]).sum(-1)
    reached = first < best.shape[1]
    return best.gather(1, first.clamp(max=best.shape[1] - 1)[:, None]).squeeze(1), reached
