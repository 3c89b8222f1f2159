"""How one tensor of a model is shared among the ranks of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from aegaeon_worker.models.errors import ModelUnsupportedError
from aegaeon_worker.parallel.ranks import Ranks


@dataclass(frozen=True)
class Extent:
    """Consecutive rows (or columns) that are cut into ``pieces`` of equal size.

    With fewer pieces than ranks, neighbouring ranks have the same one. The last piece is filled up
    with zeros where the rows do not divide, which only a vocabulary's may.
    """

    length: int
    pieces: int

    @property
    def piece_length(self) -> int:
        """Rows of one piece."""
        return -(-self.length // self.pieces)


@dataclass(frozen=True)
class Share:
    """A rank's part of a tensor: along ``dim`` its piece of each extent; without any, all of it."""

    extents: tuple[Extent, ...] = ()
    dim: int = 0
    first_only: bool = False
    """Rank 0 has all of it, the others zeros: what is added to every rank's part of a sum."""

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Shape of a rank's part of a tensor of shape ``whole``."""
        shape = list(whole)
        if self.extents:
            shape[self.dim] = sum(extent.piece_length for extent in self.extents)
        return tuple(shape)

    def write(self, out: torch.Tensor, whole: torch.Tensor, ranks: Ranks) -> None:
        """Fill ``out`` with the part of one rank."""
        if self.first_only and ranks.rank:
            out.zero_()
        elif not self.extents:
            out.copy_(whole)
        else:
            self._write_pieces(out, whole, ranks)

    def _write_pieces(self, out: torch.Tensor, whole: torch.Tensor, ranks: Ranks) -> None:
        read = written = 0
        for extent in self.extents:
            length = extent.piece_length
            start = min(ranks.piece(extent.pieces) * length, extent.length)
            count = min(length, extent.length - start)
            target = out.narrow(self.dim, written, length)
            target.narrow(self.dim, 0, count).copy_(whole.narrow(self.dim, read + start, count))
            target.narrow(self.dim, count, length - count).zero_()
            read += extent.length
            written += length


WHOLE = Share()
FIRST_ONLY = Share(first_only=True)


def divided(path: Path, what: str, length: int, size: int, dim: int = 0) -> Share:
    """Equal pieces; ``ModelUnsupportedError`` with the numbers if ``length`` does not divide."""
    if length % size:
        raise ModelUnsupportedError(
            path,
            f"{what} of {length} cannot be divided among {size} ranks; choose a "
            f"tensor_parallel_size that divides it",
        )
    return Share((Extent(length, size),), dim)


def kv_pieces(path: Path, query_heads: int, kv_heads: int, size: int) -> int:
    """Into how many pieces KV heads are divided: a head that ranks outnumber is on several.

    ``ModelUnsupportedError`` with the numbers where heads cannot be shared among ``size`` ranks.
    """
    if not _shareable(query_heads, kv_heads, size):
        possible = [n for n in range(1, query_heads + 1) if _shareable(query_heads, kv_heads, n)]
        raise ModelUnsupportedError(
            path,
            f"{query_heads} query heads and {kv_heads} KV heads cannot be shared among {size} "
            f"ranks; tensor_parallel_size may be {', '.join(map(str, possible))}",
        )
    return min(kv_heads, size)


def _shareable(query_heads: int, kv_heads: int, size: int) -> bool:
    return query_heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
