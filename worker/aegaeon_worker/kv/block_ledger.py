"""Which blocks of one model's KV range are in use, and which chunks they need."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class TakenBlocks:
    """Blocks handed out together."""

    blocks: list[int]
    new_positions: list[int]
    """Chunk positions that had no used block before and must be mapped now."""


class BlockLedger:
    """Block ids of a KV range over chunks that are mapped on demand.

    Pure bookkeeping. Blocks on chunks in use are handed out first and low ids before high ones, so
    that few chunks are mapped and copies find long runs. A chunk without a used block is to be
    unmapped. Blocks need not divide chunks: one may touch several, and needs them all.
    """

    def __init__(self, num_blocks: int, block_nbytes: int, chunk_nbytes: int) -> None:
        self.num_blocks = num_blocks
        self.block_nbytes = block_nbytes
        self._chunk_nbytes = chunk_nbytes
        self._used: set[int] = set()
        num_positions = -(-num_blocks * block_nbytes // chunk_nbytes)
        self._users = [0] * num_positions
        # Free blocks by the first chunk they touch; ascending lists are valid heaps.
        self._free: dict[int, list[int]] = {}
        for block in range(num_blocks):
            self._free.setdefault(self._positions(block).start, []).append(block)

    @property
    def num_used(self) -> int:
        """Blocks handed out."""
        return len(self._used)

    @property
    def num_free(self) -> int:
        """Blocks that could be handed out if their chunks can be mapped."""
        return self.num_blocks - len(self._used)

    def used_positions(self) -> set[int]:
        """Chunk positions that hold at least one used block."""
        return {position for position, users in enumerate(self._users) if users}

    def positions_for(self, num_blocks: int) -> int:
        """Chunks that ``num_blocks`` blocks need when they lie side by side from the start."""
        return -(-num_blocks * self.block_nbytes // self._chunk_nbytes)

    def take(self, count: int) -> TakenBlocks:
        """Hand out ``count`` blocks; ``ValueError`` and none if the range has fewer free."""
        if count > self.num_free:
            raise ValueError(
                f"{count} blocks asked for, {self.num_free} of {self.num_blocks} are free"
            )
        taken = TakenBlocks([], [])
        for home in sorted(home for home in self._free if self._users[home]):
            self._take_from(home, count, taken, extend=False)
        for home in sorted(self._free):
            self._take_from(home, count, taken, extend=True)
            if len(taken.blocks) == count:
                break
        return taken

    def give_back(self, blocks: Iterable[int]) -> list[int]:
        """Free blocks; return the chunk positions that no used block touches any more."""
        emptied = []
        for block in blocks:
            if block not in self._used:
                raise ValueError(f"block {block} is not in use")
            self._used.remove(block)
            positions = self._positions(block)
            heapq.heappush(self._free.setdefault(positions.start, []), block)
            for position in positions:
                self._users[position] -= 1
                if not self._users[position]:
                    emptied.append(position)
        return emptied

    def audit(self) -> None:
        """Raise ``AssertionError`` unless every block is free or used and the counts agree."""
        free = [block for blocks in self._free.values() for block in blocks]
        if sorted([*free, *self._used]) != list(range(self.num_blocks)):
            raise AssertionError(f"blocks free: {sorted(free)}, used: {sorted(self._used)}")
        users = [0] * len(self._users)
        for block in self._used:
            for position in self._positions(block):
                users[position] += 1
        if users != self._users:
            raise AssertionError(f"users per chunk: {self._users}, should be {users}")

    def _positions(self, block: int) -> range:
        first = block * self.block_nbytes // self._chunk_nbytes
        last = ((block + 1) * self.block_nbytes - 1) // self._chunk_nbytes
        return range(first, last + 1)

    def _take_from(self, home: int, count: int, taken: TakenBlocks, *, extend: bool) -> None:
        """Take free blocks of one home chunk, on unused chunks only if ``extend``."""
        heap = self._free[home]
        while heap and len(taken.blocks) < count:
            positions = self._positions(heap[0])
            unused = [position for position in positions if not self._users[position]]
            if unused and not extend:
                break
            block = heapq.heappop(heap)
            self._used.add(block)
            for position in positions:
                self._users[position] += 1
            taken.blocks.append(block)
            taken.new_positions.extend(unused)
        if not heap:
            del self._free[home]
