"""Which chunk backs which position of one virtual range."""

from __future__ import annotations

from collections.abc import Iterable

from aegaeon_worker.device.pool import DevicePool


class ChunkTable:
    """The books of one range; wrong positions are refused before anything changes."""

    def __init__(self, pool: DevicePool, owner: str, num_positions: int) -> None:
        self._pool = pool
        self._owner = owner
        self._num_positions = num_positions
        self._chunks: dict[int, int] = {}

    @property
    def positions(self) -> frozenset[int]:
        """Positions that have a chunk."""
        return frozenset(self._chunks)

    def chunk(self, position: int) -> int:
        """The chunk of a position."""
        return self._chunks[position]

    def take(self, positions: Iterable[int]) -> dict[int, int]:
        """Give every position a chunk of the pool: all of them, or an error and none.

        ``OutOfChunks`` if the pool lacks chunks; ``ValueError`` for a position outside the range
        or with a chunk already.
        """
        wanted = list(positions)
        for position in wanted:
            if not 0 <= position < self._num_positions:
                raise ValueError(
                    f"{self._owner} has positions 0 to {self._num_positions - 1}, not {position}"
                )
        doubled = [position for position in wanted if position in self._chunks]
        if doubled or len(set(wanted)) != len(wanted):
            raise ValueError(f"{self._owner}: positions mapped already: {doubled}, of {wanted}")
        taken = dict(zip(wanted, self._pool.take(self._owner, len(wanted)), strict=True))
        self._chunks |= taken
        return taken

    def require(self, positions: Iterable[int]) -> list[int]:
        """The positions as a list; ``ValueError`` if one has no chunk or is named twice."""
        wanted = list(positions)
        absent = [position for position in wanted if position not in self._chunks]
        if absent or len(set(wanted)) != len(wanted):
            raise ValueError(f"{self._owner}: positions not mapped: {absent}, of {wanted}")
        return wanted

    def give_back(self, positions: Iterable[int]) -> None:
        """Return the chunks of positions that have one to the pool."""
        self._pool.give_back(self._owner, [self._chunks.pop(p) for p in list(positions)])

    def require_bytes(self, offset: int, nbytes: int) -> None:
        """``ValueError`` unless ``nbytes`` from ``offset`` on lie in the range."""
        end = offset + nbytes
        size = self._num_positions * self._pool.chunk_nbytes
        if offset < 0 or end > size:
            raise ValueError(f"bytes [{offset}, {end}) are outside {self._owner} of {size}")
