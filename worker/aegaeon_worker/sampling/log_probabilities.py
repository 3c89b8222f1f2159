"""What a model thought of a token, and of those that it thought most probable."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from aegaeon_worker.sampling.draw import total


class TokenLogProbabilities(NamedTuple):
    """Natural logarithms; the most probable tokens are in descending order, equals by id."""

    logprob: float
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class Measured(NamedTuple):
    """Log-probabilities on the device, row by row."""

    own: torch.Tensor
    """float32 [R]: of the chosen tokens."""
    best: torch.Tensor
    """float32 [R, N]: of the most probable ones, descending."""
    ids: torch.Tensor
    """int64 [R, N]"""


def measure(logits: torch.Tensor, tokens: torch.Tensor, count: int) -> Measured:
    """Of ``tokens`` [R], and of the ``count`` most probable ones per row of ``logits`` [R, V]."""
    highest = logits.amax(-1, keepdim=True)
    # Here, the two passes of `logsumexp` would take twice the time.
    whole = highest + total((logits - highest).exp_()).log()[:, None].to(torch.float32)
    own = (logits.gather(1, tokens[:, None]) - whole).squeeze(1)
    best = logits.topk(min(count, logits.shape[1]))
    return Measured(own, best.values - whole, best.indices)


def tell(measured: Measured, counts: Seq[int]) -> list[TokenLogProbabilities]:
    """What was ``measured``, on the host by now, with ``counts`` of the most probable per row."""
    own, best, ids = (tensor.tolist() for tensor in measured)
    rows = []
    for row, count in enumerate(counts):
        # Devices order equal values as they like.
        top = sorted(zip(best[row], ids[row], strict=True), key=lambda pair: (-pair[0], pair[1]))
        rows.append(
            TokenLogProbabilities(
                own[row],
                tuple(token for _, token in top[:count]),
                tuple(value for value, _ in top[:count]),
            )
        )
    return rows
