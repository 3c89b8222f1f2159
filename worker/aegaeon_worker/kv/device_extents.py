"""Where device blocks lie in a device's chunks, and how they find their way into others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from aegaeon_worker.device.interface import VirtualRange
from aegaeon_worker.device.sharing import PeerPiece

Extents = tuple[tuple[int, int], ...]
"""Parts of memory in order: where each starts, counted over a device's chunks, and its bytes."""


def extents_of(
    blocks: Sequence[int], block_nbytes: int, held: VirtualRange, chunk_nbytes: int
) -> Extents:
    """The parts of the chunks that mapped blocks of a range lie in, as few as possible."""
    return _joined(
        (held.chunk(position) * chunk_nbytes + skip, count)
        for block in blocks
        for position, skip, count in _cut(block * block_nbytes, block_nbytes, chunk_nbytes)
    )


def pieces_for(extents: Extents, blocks: Sequence[int], block_nbytes: int) -> list[PeerPiece]:
    """Copies of ``extents`` to the blocks of a range; both have the same number of bytes."""
    targets = iter(_joined((block * block_nbytes, block_nbytes) for block in blocks))
    pieces = []
    offset, room = 0, 0
    for start, nbytes in extents:
        while nbytes:
            if not room:
                offset, room = next(targets)
            count = min(nbytes, room)
            pieces.append(PeerPiece(start, offset, count))
            start, offset = start + count, offset + count
            nbytes, room = nbytes - count, room - count
    return pieces


def _cut(start: int, nbytes: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Bytes of a range, cut where chunks meet: position, bytes to skip there, and how many."""
    while nbytes:
        position, skip = divmod(start, size)
        count = min(nbytes, size - skip)
        yield position, skip, count
        start, nbytes = start + count, nbytes - count


def _joined(parts: Iterable[tuple[int, int]]) -> Extents:
    """Parts that follow each other as one."""
    joined: list[tuple[int, int]] = []
    for start, nbytes in parts:
        if joined and sum(joined[-1]) == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + nbytes)
        else:
            joined.append((start, nbytes))
    return tuple(joined)
