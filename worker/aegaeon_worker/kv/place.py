"""Where KV lies in the host slabs of a node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aegaeon_worker.kv.shape import KvShape


@dataclass(frozen=True, slots=True)
class HostBlock:
    """A block's place: ``index`` counts blocks from the start of the slab."""

    slab: int
    index: int


@dataclass(frozen=True)
class BlockRun:
    """Blocks side by side in one slab, published together.

    ``generation`` is the number that they were published under; it is never used again.
    """

    slab: int
    generation: int
    first_block: int
    num_blocks: int

    @property
    def blocks(self) -> list[HostBlock]:
        """One by one."""
        end = self.first_block + self.num_blocks
        return [HostBlock(self.slab, index) for index in range(self.first_block, end)]


@dataclass(frozen=True)
class KvPlace:
    """Published KV of one sequence's first ``num_tokens`` tokens; 0 tokens have no place.

    It is in the slabs of this node, or of the node with a worker at ``address``, in blocks of
    ``pieces`` as in ``KvShape``. With an ``offer`` there are no runs: the file of that name, in the
    folder of KV of that node, tells where it is, on its worker's device or in the slabs.
    """

    num_tokens: int
    block_nbytes: int
    runs: tuple[BlockRun, ...]
    address: str = ""
    pieces: int = 1
    offer: str = ""

    @property
    def num_blocks(self) -> int:
        """Blocks, wherever they are."""
        if self.offer:
            return KvShape.blocks_for(self.num_tokens)
        return sum(run.num_blocks for run in self.runs)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.block_nbytes

    @property
    def blocks(self) -> list[HostBlock]:
        """In the order of their tokens."""
        return [block for run in self.runs for block in run.blocks]


NOWHERE = KvPlace(0, 0, ())
"""No KV was kept."""


def runs_of(stamped: Iterable[tuple[HostBlock, int]]) -> tuple[BlockRun, ...]:
    """Join blocks that follow each other and have one generation; pairs of block and generation."""
    runs: list[BlockRun] = []
    for block, generation in stamped:
        last = runs[-1] if runs else None
        follows = (block.slab, generation, block.index)
        if last and follows == (last.slab, last.generation, last.first_block + last.num_blocks):
            runs[-1] = BlockRun(last.slab, generation, last.first_block, last.num_blocks + 1)
        else:
            runs.append(BlockRun(block.slab, generation, block.index, 1))
    return tuple(runs)
