"""Reads what workers of a node have published, for those of other nodes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

from aegaeon.errors import ErrorReason, NotFoundError
from aegaeon_worker.kv.place import BlockRun, KvPlace
from aegaeon_worker.kv.stamps import BlockStamps

#: Costs least per byte: larger ones leave the processor's cache between the copies of a message,
#: smaller ones are too many messages.
PIECE_NBYTES = 512 << 10


class SlabReader:
    """Copies published KV out of the slabs, piece by piece, on any one thread.

    A piece is good if its blocks bear the stamps asked for before and after it was copied: before,
    so that their memory exists, and after, so that nobody else has written there.
    """

    def __init__(self, directory: Path, address: int, num_slabs: int, slab_nbytes: int) -> None:
        """``address`` is that of the mapped slabs, which must outlive the reader."""
        nbytes = num_slabs * slab_nbytes
        self._memory = memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")
        self._stamps = BlockStamps(directory)
        self._num_slabs = num_slabs
        self._slab_nbytes = slab_nbytes

    def read(self, place: KvPlace, content: int, offset: int) -> bytes:
        """At most ``PIECE_NBYTES`` from ``offset``, counted over all blocks of the place.

        ``NotFoundError`` (KV_NOT_FOUND) if they are not published as such any more.
        """
        spans = list(_spans(place, offset))
        self._require(place, spans, content)
        starts = (
            run.slab * self._slab_nbytes + run.first_block * place.block_nbytes + skip
            for run, skip, _ in spans
        )
        counts = (count for _, _, count in spans)
        data = b"".join(
            self._memory[start : start + count] for start, count in zip(starts, counts, strict=True)
        )
        self._require(place, spans, content)
        return data

    def close(self) -> None:
        """Give the files up; the mapping may go then."""
        self._memory.release()
        self._stamps.close()

    def _require(
        self, place: KvPlace, spans: list[tuple[BlockRun, int, int]], content: int
    ) -> None:
        for run, _, _ in spans:
            end = (run.first_block + run.num_blocks) * place.block_nbytes
            inside = run.slab < self._num_slabs and end <= self._slab_nbytes
            if not inside or not self._stamps.match(run, content):
                raise NotFoundError(
                    f"the KV in blocks {run.first_block} to {run.first_block + run.num_blocks - 1} "
                    f"of slab {run.slab} has been freed or replaced; compute it again",
                    reason=ErrorReason.KV_NOT_FOUND,
                )


def _spans(place: KvPlace, offset: int) -> Iterator[tuple[BlockRun, int, int]]:
    """The blocks of a piece: runs, bytes to skip in the first block of each, and bytes to take."""
    left, size = PIECE_NBYTES, place.block_nbytes
    for run in place.runs:
        nbytes = run.num_blocks * size
        if offset >= nbytes:
            offset -= nbytes
            continue
        count = min(nbytes - offset, left)
        first, last = offset // size, (offset + count - 1) // size
        touched = BlockRun(run.slab, run.generation, run.first_block + first, last - first + 1)
        yield touched, offset - first * size, count
        left, offset = left - count, 0
        if not left:
            return
