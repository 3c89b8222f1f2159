"""The books of one slab of host memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from aegaeon_worker.kv.place import HostBlock

Forget = Callable[[HostBlock], None]
"""Tells whoever kept a block that its bytes are gone."""


class Kept(NamedTuple):
    """Why a block is kept: what its bytes mean, and whom to tell when they are gone."""

    content: int
    forget: Forget


class Slab:
    """Blocks of one size: free, in use, or kept, which is free with bytes that may still be read.

    The lowest free block is handed out first, so that what is used stays near the slab's start.
    """

    def __init__(self, number: int, block_nbytes: int, num_blocks: int) -> None:
        self.number = number
        self.block_nbytes = block_nbytes
        self.free = list(range(num_blocks))
        self.used: set[int] = set()
        self.kept: dict[int, Kept] = {}
        """The one that was kept first comes first."""
        self.generations: dict[int, int] = {}
        """Of the stamps on blocks that may be read by others, or are kept."""

    def take(self) -> HostBlock:
        """The lowest free block."""
        index = heapq.heappop(self.free)
        self.used.add(index)
        return HostBlock(self.number, index)

    def give_back(self, index: int) -> None:
        """Free a block in use; ``ValueError`` if it is not."""
        if index not in self.used:
            raise ValueError(f"{HostBlock(self.number, index)} is not in use by this worker")
        self.used.remove(index)
        heapq.heappush(self.free, index)

    def keep(self, index: int, kept: Kept) -> None:
        """Nobody uses a block any more, but its bytes stay until the block is needed."""
        self.used.remove(index)
        self.kept[index] = kept

    def revive(self, index: int) -> bool:
        """Use a kept block again, bytes and all; false if it is not kept."""
        if self.kept.pop(index, None) is None:
            return False
        self.used.add(index)
        return True

    def reclaim(self) -> HostBlock:
        """Use the block that was kept first for something else."""
        index = next(iter(self.kept))
        block = HostBlock(self.number, index)
        self.kept.pop(index).forget(block)
        self.used.add(index)
        return block

    def forget_kept(self) -> None:
        """The bytes of all kept blocks are gone."""
        for index, kept in self.kept.items():
            kept.forget(HostBlock(self.number, index))

    def drop_kept(self, forget: Forget) -> list[HostBlock]:
        """Free the blocks that were kept for one, who is not told; they are returned."""
        dropped = [index for index, kept in self.kept.items() if kept.forget == forget]
        for index in dropped:
            del self.kept[index]
            heapq.heappush(self.free, index)
        return [HostBlock(self.number, index) for index in dropped]

    def audit(self, num_blocks: int) -> None:
        """Raise ``AssertionError`` unless every block is in one state, and one is in use."""
        if not self.used or sorted([*self.free, *self.used, *self.kept]) != list(range(num_blocks)):
            raise AssertionError(
                f"slab {self.number}: free {sorted(self.free)}, used {sorted(self.used)}, "
                f"kept {sorted(self.kept)}"
            )
        readable = self.used | self.kept.keys()
        if (
            not self.generations.keys() <= readable
            or not self.kept.keys() <= self.generations.keys()
        ):
            raise AssertionError(f"slab {self.number}: stamped {sorted(self.generations)}")
