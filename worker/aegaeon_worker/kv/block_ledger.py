"""Which blocks of one model's KV range are in use, and which chunks they need."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice


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

    A used block may rest: nobody needs it now, and its bytes are kept in case somebody will. The
    chunks on which all used blocks rest are known, because they may go at any time.
    """

    def __init__(self, num_blocks: int, block_nbytes: int, chunk_nbytes: int) -> None:
        self.num_blocks = num_blocks
        self.block_nbytes = block_nbytes
        self._chunk_nbytes = chunk_nbytes
        self._used: set[int] = set()
        num_positions = -(-num_blocks * block_nbytes // chunk_nbytes)
        self._users = [0] * num_positions
        self._resting: dict[int, None] = {}
        self._sleepers = [0] * num_positions
        # In the order in which they came to have resting blocks alone.
        self._idle: dict[int, None] = {}
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

    @property
    def num_resting(self) -> int:
        """Used blocks that rest."""
        return len(self._resting)

    @property
    def num_idle_positions(self) -> int:
        """Chunks whose used blocks all rest."""
        return len(self._idle)

    def used_positions(self) -> set[int]:
        """Chunk positions that hold at least one used block."""
        return {position for position, users in enumerate(self._users) if users}

    def rest(self, block: int) -> None:
        """Nobody needs a used block now; ``ValueError`` if it is not in use or rests already."""
        if block not in self._used or block in self._resting:
            raise ValueError(f"block {block} is not in use, or rests already")
        self._resting[block] = None
        for position in self._positions(block):
            self._sleepers[position] += 1
            self._note(position)

    def wake(self, block: int) -> None:
        """Somebody needs a block again; ``KeyError`` if it does not rest."""
        del self._resting[block]
        for position in self._positions(block):
            self._sleepers[position] -= 1
            self._note(position)

    def longest_idle(self) -> list[int]:
        """All blocks of the chunk that has held resting blocks alone for the longest time."""
        position = next(iter(self._idle), None)
        if position is None:
            return []
        first = position * self._chunk_nbytes // self.block_nbytes
        last = ((position + 1) * self._chunk_nbytes - 1) // self.block_nbytes
        return [block for block in range(first, last + 1) if block in self._resting]

    def longest_resting(self, count: int) -> list[int]:
        """Up to ``count`` resting blocks, those that have rested longest first."""
        return list(islice(self._resting, count))

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
            if block in self._resting:
                self.wake(block)
            self._used.remove(block)
            positions = self._positions(block)
            heapq.heappush(self._free.setdefault(positions.start, []), block)
            for position in positions:
                self._users[position] -= 1
                if not self._users[position]:
                    emptied.append(position)
                self._note(position)
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
        awake = {p for b in self._used - self._resting.keys() for p in self._positions(b)}
        idle = self.used_positions() - awake
        if not self._resting.keys() <= self._used or self._idle.keys() != idle:
            raise AssertionError(f"idle chunks: {sorted(self._idle)}, should be {sorted(idle)}")

    def _positions(self, block: int) -> range:
        first = block * self.block_nbytes // self._chunk_nbytes
        last = ((block + 1) * self.block_nbytes - 1) // self._chunk_nbytes
        return range(first, last + 1)

    def _note(self, position: int) -> None:
        """Whether a chunk's used blocks all rest has perhaps changed."""
        if not self._users[position] or self._sleepers[position] < self._users[position]:
            self._idle.pop(position, None)
        else:
            self._idle.setdefault(position)

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
                self._note(position)
            taken.blocks.append(block)
            taken.new_positions.extend(unused)
        if not heap:
            del self._free[home]
