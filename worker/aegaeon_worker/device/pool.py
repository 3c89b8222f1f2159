"""The ledger of a device's physical memory."""

from __future__ import annotations

from collections.abc import Iterable

from aegaeon_worker.device.errors import OutOfChunks


class DevicePool:
    """Who owns which of the equal chunks that make up a device's physical memory.

    Pure bookkeeping: the device attaches addresses to the chunk ids. A chunk has exactly one owner
    or is free. The most recently returned chunk is handed out first, because its pages have been
    touched already.
    """

    def __init__(self, num_chunks: int, chunk_nbytes: int) -> None:
        if num_chunks < 1 or chunk_nbytes < 1:
            raise ValueError(
                f"a device pool needs at least one chunk of at least one byte, "
                f"not {num_chunks} of {chunk_nbytes}"
            )
        self.num_chunks = self._most_chunks = num_chunks
        self.chunk_nbytes = chunk_nbytes
        self._free = list(range(num_chunks - 1, -1, -1))
        self._owner: dict[int, str] = {}

    def restrict(self, num_chunks: int) -> None:
        """Offer this many of the chunks that there were at first, while all of them are free."""
        if self._owner or not 1 <= num_chunks <= self._most_chunks:
            raise ValueError(
                f"cannot offer {num_chunks} of {self._most_chunks} chunks with "
                f"{len(self._owner)} in use"
            )
        self.num_chunks = num_chunks
        self._free = list(range(num_chunks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Chunks that nobody owns."""
        return len(self._free)

    @property
    def free_nbytes(self) -> int:
        """Bytes of the free chunks."""
        return self.num_free * self.chunk_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks."""
        return self.num_chunks * self.chunk_nbytes

    def chunks_for(self, nbytes: int) -> int:
        """Chunks that hold ``nbytes`` bytes."""
        return -(-nbytes // self.chunk_nbytes)

    def take(self, owner: str, count: int) -> list[int]:
        """Give ``count`` chunks to ``owner``: all of them, or ``OutOfChunks`` and none."""
        if count > len(self._free):
            raise OutOfChunks(owner, count, len(self._free), self.num_chunks, self.chunk_nbytes)
        chunks = [self._free.pop() for _ in range(count)]
        for chunk in chunks:
            self._owner[chunk] = owner
        return chunks

    def give_back(self, owner: str, chunks: Iterable[int]) -> None:
        """Free chunks of ``owner``; ``ValueError`` and no change if any belongs to another."""
        returned = list(chunks)
        for chunk in returned:
            if self._owner.get(chunk) != owner:
                holder = self._owner.get(chunk, "nobody")
                raise ValueError(f"chunk {chunk} belongs to {holder}, not to {owner}")
        if len(set(returned)) != len(returned):
            raise ValueError(f"{owner} gives a chunk back twice: {returned}")
        for chunk in returned:
            del self._owner[chunk]
        self._free.extend(reversed(returned))

    def owned(self) -> dict[str, int]:
        """Chunks held, by owner; owners of nothing are absent."""
        counts: dict[str, int] = {}
        for owner in self._owner.values():
            counts[owner] = counts.get(owner, 0) + 1
        return counts

    def audit(self) -> None:
        """Raise ``AssertionError`` unless every chunk is free or owned, and never both."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise AssertionError(f"chunks free twice: {sorted(self._free)}")
        both = free & self._owner.keys()
        lost = set(range(self.num_chunks)) - free - self._owner.keys()
        if both or lost:
            raise AssertionError(f"chunks free and owned: {sorted(both)}; lost: {sorted(lost)}")
