"""What the ranks of an engine compute together."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from aegaeon_worker.parallel.ranks import ALONE, Ranks


class Collectives(Protocol):
    """Operations that every rank calls in the same order with tensors of the same shape."""

    @property
    def ranks(self) -> Ranks:
        """Which rank this is, of how many."""

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' ``part``, on every rank; ``part`` may be overwritten."""

    def sum_parts(
        self, part: torch.Tensor, dtype: torch.dtype, *, first: bool = False
    ) -> torch.Tensor:
        """As ``sum``, in ``dtype``, of [T, N], or of partial sums [P, T, N], whose sum is [T, N].

        ``first`` is said of one sum of a pass, ahead of all others. An engine of one worker may
        leave partial sums as they are, for whoever reads them next.
        """

    def join(self, part: torch.Tensor) -> torch.Tensor:
        """All ranks' ``part`` [..., N] side by side in the order of ranks, on every rank."""

    def join_at_first(self, part: torch.Tensor) -> torch.Tensor:
        """As ``join`` on rank 0, which is the one that chooses tokens; elsewhere ``part``."""


class Alone:
    """The ``Collectives`` of an engine of one worker."""

    ranks = ALONE

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """It is the only one."""
        return part

    def sum_parts(
        self, part: torch.Tensor, dtype: torch.dtype, *, first: bool = False
    ) -> torch.Tensor:
        """It is the only one."""
        return part

    def join(self, part: torch.Tensor) -> torch.Tensor:
        """It is the only one."""
        return part

    def join_at_first(self, part: torch.Tensor) -> torch.Tensor:
        """It is the only one."""
        return part


def embed(collectives: Collectives, token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows [T, H] of an embedding of which each rank has ``table``, an equal share of the rows."""
    if collectives.ranks.size == 1:
        return F.embedding(token_ids, table)
    first = collectives.ranks.rank * table.shape[0]
    if table.is_cuda:
        # For CUDA only, like Triton.
        from aegaeon_worker.kernels.shared_vocabulary import embed_share

        part = embed_share(token_ids, table, first)
        return collectives.sum_parts(part, table.dtype, first=True)
    local = token_ids - first
    elsewhere = (local < 0) | (local >= table.shape[0])
    rows = F.embedding(local.masked_fill_(elsewhere, 0), table)
    part = rows.masked_fill_(elsewhere.unsqueeze(-1), 0)
    return collectives.sum_parts(part, table.dtype, first=True)
