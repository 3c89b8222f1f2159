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
    local = token_ids - collectives.ranks.rank * table.shape[0]
    elsewhere = (local < 0) | (local >= table.shape[0])
    rows = F.embedding(local.masked_fill_(elsewhere, 0), table)
    return collectives.sum(rows.masked_fill_(elsewhere.unsqueeze(-1), 0))
