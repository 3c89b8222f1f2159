"""Copies many pieces of memory that a GPU maps, its own or another's, in one kernel.

A copy per piece costs a launch each, and between two GPUs far more: pieces of 2 MiB reached 1 GB/s
that way. Here a few programs share the pieces out, and each keeps two tiles in flight, so that the
link is busy while the rest of the GPU is left to the steps that run beside it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aegaeon_worker.device.host_link import upload
from aegaeon_worker.device.sharing import cut_parts

#: What one program copies before it looks for its next part: long against looking, and short
#: enough that programs end at almost the same time.
_PART_NBYTES = 512 << 10
#: Eight vectors of 16 bytes for each thread, twice: registers that leave room on a multiprocessor.
_TILE_PER_WARP = 512
WARPS = 4
#: As many bytes in flight (16 to 32 KiB each) as a link of 400 GB/s and 2 us needs.
PROGRAMS = 64


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _gather_kernel(table_ptr, count, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, TILE)
    for part in range(tl.program_id(0), count, tl.num_programs(0)):
        row = table_ptr + part * 3
        source = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.int64)), 16)
        target = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.int64)), 16)
        words = tl.multiple_of(tl.load(row + 2) // 8, 2)
        whole = words // TILE * TILE
        if whole > 0:
            coming = tl.load(source + lane)
            for start in range(TILE, whole, TILE):
                here = coming
                coming = tl.load(source + start + lane)
                tl.store(target + (start - TILE) + lane, here)
            tl.store(target + (whole - TILE) + lane, coming)
        if whole < words:
            at = whole + lane
            tl.store(target + at, tl.load(source + at, mask=at < words), mask=at < words)


def gather_pieces(
    pieces: torch.Tensor,
    device: torch.device,
    *,
    programs: int = PROGRAMS,
    warps: int = WARPS,
) -> None:
    """Queue copies on the current stream.

    ``pieces`` is int64 [pieces, 3] in host memory: source, target, bytes, all multiples of 16.
    """
    source, target, nbytes = pieces.unbind(1)
    whose, begins, sizes = cut_parts(source, nbytes, _PART_NBYTES)
    parts = torch.stack([begins, target[whose] + begins - source[whose], sizes], dim=1)
    tile = warps * _TILE_PER_WARP
    table = upload(parts, device)
    _gather_kernel[(programs,)](table, len(parts), TILE=tile, num_warps=warps, num_stages=1)
