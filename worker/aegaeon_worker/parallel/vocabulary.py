"""A vocabulary of which every rank has an equal share."""

from __future__ import annotations

import torch

from aegaeon_worker.parallel.collectives import Collectives


class SharedVocabulary:
    """Tokens ``[rank * rows, (rank + 1) * rows)`` are this rank's, as far as there are so many."""

    def __init__(self, collectives: Collectives, size: int, rows: int) -> None:
        self._collectives = collectives
        self._size = size
        self._first = collectives.ranks.rank * rows

    def whole(self, columns: torch.Tensor) -> torch.Tensor:
        """Logits [R, size] of all ranks' ``columns`` [R, rows], on rank 0 alone."""
        return self._collectives.join_at_first(columns)[:, : self._size]

    def own(self, columns: torch.Tensor) -> torch.Tensor:
        """``columns`` without those that only fill a share up."""
        return columns[:, : self._size - self._first]

    def settle(self, tokens: torch.Tensor, found: torch.Tensor) -> None:
        """Let all ranks have the most probable of their tokens, the lowest id among equals.

        ``found`` float64 [S, 2] has this rank's best columns and their logits; tokens of all ranks
        replace them, there and in ``tokens`` [B], B >= S. Every rank compares the same numbers in
        the same order, so that no two can disagree, and none of it is read on the host.
        """
        ranks = self._collectives.ranks
        if ranks.size == 1:
            return
        # For CUDA only, like Triton.
        from aegaeon_worker.kernels.shared_vocabulary import settle_best, spread_best

        own = spread_best(found, self._first, ranks.rank, ranks.size)
        settle_best(self._collectives.sum_parts(own, own.dtype), tokens, found)
