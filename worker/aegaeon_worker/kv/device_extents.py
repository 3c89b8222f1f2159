"""Where device blocks lie in a device's chunks, and how they find their way into others.

All of it in operations on whole columns: a hand-off of 512 scattered blocks is to be described in
less time than a decode step takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aegaeon_worker.device.interface import VirtualRange
from aegaeon_worker.device.sharing import cut_parts
from aegaeon_worker.peers.offer import Extents


def extents_of(
    blocks: Sequence[int], block_nbytes: int, held: VirtualRange, chunk_nbytes: int
) -> Extents:
    """The parts of the chunks that mapped blocks of a range lie in, as few as possible."""
    starts, sizes = _joined(*_spans(blocks, block_nbytes))
    _, starts, sizes = cut_parts(starts, sizes, chunk_nbytes)
    positions, which = torch.unique(starts // chunk_nbytes, return_inverse=True)
    chunks = torch.tensor([held.chunk(p) for p in positions.tolist()], dtype=torch.int64)
    starts, sizes = _joined(chunks[which] * chunk_nbytes + starts % chunk_nbytes, sizes)
    return Extents(tuple(starts.tolist()), tuple(sizes.tolist()))


def pieces_for(extents: Extents, blocks: Sequence[int], block_nbytes: int) -> torch.Tensor:
    """Copies of ``extents`` to the blocks of a range; both have the same number of bytes.

    int64 [pieces, 3]: start over the other device's chunks, offset in the range, bytes.
    """
    sides = [
        (torch.tensor(extents.starts, dtype=torch.int64), torch.tensor(extents.sizes)),
        _joined(*_spans(blocks, block_nbytes)),
    ]
    ends = [sizes.cumsum(0) for _, sizes in sides]
    cuts = torch.unique(torch.cat(ends))
    begins = torch.cat([cuts.new_zeros(1), cuts[:-1]])
    columns = []
    for (starts, sizes), upto in zip(sides, ends, strict=True):
        part = torch.searchsorted(upto, begins, right=True)
        columns.append(starts[part] + begins - (upto - sizes)[part])
    return torch.stack([*columns, cuts - begins], dim=1)


def _spans(blocks: Sequence[int], block_nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.tensor(blocks, dtype=torch.int64) * block_nbytes
    return starts, torch.full_like(starts, block_nbytes)


def _joined(starts: torch.Tensor, sizes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Parts that follow each other as one."""
    leads = torch.ones_like(starts, dtype=torch.bool)
    leads[1:] = starts[1:] != starts[:-1] + sizes[:-1]
    before = (sizes.cumsum(0) - sizes)[leads]
    ends = torch.cat([before[1:], sizes.sum().view(1)])
    return starts[leads], ends - before
