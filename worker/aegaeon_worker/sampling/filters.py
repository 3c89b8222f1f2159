"""Which tokens may be drawn: min-p, then top-k, then top-p, without sorting vocabularies.

Every filter is a lowest score per row. What is kept therefore does not depend on the order in which
a device sorts equal scores, nor on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from aegaeon_worker.device.host_link import upload
from aegaeon_worker.sampling.draw import total
from aegaeon_worker.sampling.parameters import SamplingParameters

#: Highest scores to look at for top-p. They nearly always hold its share of the probability; for
#: rows where they do not, so many times as many are looked at, again and again.
_CANDIDATES = 512
_WIDENING = 16


def kept_weights(scores: torch.Tensor, parameters: Seq[SamplingParameters]) -> torch.Tensor:
    """Weights [R, V] of the tokens in the draw, 0 for those that the filters cut.

    ``scores`` [R, V] are their logarithms, with 0 as the highest of each row.
    """
    device, vocab = scores.device, scores.shape[1]
    floor = upload(
        torch.tensor([p.min_p for p in parameters], dtype=torch.float64).log().float(), device
    )
    # All of them first: the exponential of -inf is slow.
    weights = scores.exp()
    ranked = [row for row, p in enumerate(parameters) if 0 < p.top_k < vocab or p.top_p < 1]
    if not ranked:
        return _cut(weights, scores, floor) if any(p.min_p > 0 for p in parameters) else weights
    some = [parameters[row] for row in ranked]
    rows = slice(None) if len(some) == len(parameters) else upload(ranked, device)
    top_k = [p.top_k if p.top_k < vocab else 0 for p in some]
    best = _best(scores[rows], top_k, some)
    floor[rows] = torch.maximum(floor[rows], _last_kept(best, top_k))
    weights = _cut(weights, scores, floor)
    if any(p.top_p < 1 for p in some):
        floor[rows] = _nucleus(scores[rows], weights[rows], best, floor[rows], top_k, some)
        weights = _cut(weights, scores, floor)
    return weights


def _cut(weights: torch.Tensor, scores: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    return torch.where(scores >= floor[:, None], weights, 0.0)


def _best(
    scores: torch.Tensor, top_k: Seq[int], parameters: Seq[SamplingParameters]
) -> torch.Tensor:
    """The highest scores of each row, descending: enough for top-k, and usually for top-p."""
    nucleus_alone = any(p.top_p < 1 and not k for p, k in zip(parameters, top_k, strict=True))
    width = max(*top_k, _CANDIDATES if nucleus_alone else 1)
    return scores.topk(min(width, scores.shape[1])).values


def _last_kept(best: torch.Tensor, top_k: Seq[int]) -> torch.Tensor:
    """The lowest score that top-k leaves, per row."""
    limit = upload(top_k, best.device)
    floor = best.gather(1, (limit - 1).clamp(min=0)[:, None]).squeeze(1)
    return torch.where(limit > 0, floor, -torch.inf)


def _nucleus(
    scores: torch.Tensor,
    weights: torch.Tensor,
    best: torch.Tensor,
    floor: torch.Tensor,
    top_k: Seq[int],
    parameters: Seq[SamplingParameters],
) -> torch.Tensor:
    """The lowest score that top-p leaves of ``weights``, per row; at least ``floor``."""
    device = scores.device
    shares = upload([p.top_p for p in parameters], device, torch.float64)
    goal = shares * total(weights)
    # What was cut before stands behind what reaches the goal.
    found, reached = _first_above(best, goal)
    # Where top-k leaves more than `best` holds, the rest equals its last.
    unsure = ~reached & (upload(top_k, device) == 0) & (shares < 1)
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
    return not scores.is_cuda


def _first_above(best: torch.Tensor, goal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first of the descending scores ``best`` [R, W] at which their weights reach ``goal`` [R],
    and whether they do."""
    first = (best.exp().cumsum(-1, dtype=torch.float64) < goal[:, None]).sum(-1)
    reached = first < best.shape[1]
    return best.gather(1, first.clamp(max=best.shape[1] - 1)[:, None]).squeeze(1), reached
