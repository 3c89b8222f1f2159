"""Device blocks of one model, on chunks that are mapped while they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aegaeon_worker.device.errors import OutOfChunks
from aegaeon_worker.device.interface import VirtualRange
from aegaeon_worker.device.pool import DevicePool
from aegaeon_worker.kv.block_ledger import BlockLedger


class MappedBlocks:
    """Keeps a range mapped where its ledger has used blocks, and for a moment longer: a chunk goes
    back only when nothing touches it any more, which ``settle`` waits for.
    """

    def __init__(self, pool: DevicePool, blocks: VirtualRange, block_nbytes: int) -> None:
        """``blocks`` has room for as many as the whole pool could hold."""
        self.ledger = BlockLedger(pool.nbytes // block_nbytes, block_nbytes, pool.chunk_nbytes)
        self._pool = pool
        self._range = blocks
        self._emptied: set[int] = set()

    @property
    def num_chunks(self) -> int:
        """Chunks in use."""
        return len(self._range.mapped) - len(self._emptied)

    @property
    def num_leaving(self) -> int:
        """Chunks that ``settle`` will give back."""
        return len(self._emptied)

    def missing_chunks(self, count: int) -> int:
        """Chunks to map for ``count`` more blocks."""
        if count > self.ledger.num_free:
            return self.ledger.positions_for(count)
        taken = self.ledger.take(count)
        self.ledger.give_back(taken.blocks)
        return len(set(taken.new_positions) - self._emptied)

    def take(self, count: int) -> list[int]:
        """Blocks that are mapped; ``OutOfChunks`` and no change if the pool lacks chunks."""
        if count > self.ledger.num_free:
            needed = self.ledger.positions_for(count)
            pool, name = self._pool, self._range.name
            raise OutOfChunks(name, needed, pool.num_free, pool.num_chunks, pool.chunk_nbytes)
        taken = self.ledger.take(count)
        # Chunks that were about to leave stay.
        staying = self._emptied.intersection(taken.new_positions)
        try:
            self._range.map(p for p in taken.new_positions if p not in staying)
        except BaseException:
            self.ledger.give_back(taken.blocks)
            raise
        self._emptied -= staying
        return taken.blocks

    def empty(self, positions: Iterable[int]) -> None:
        """Chunks at these positions have lost their last used block."""
        self._emptied.update(positions)

    def settle(self, synchronize: Callable[[], None]) -> None:
        """Give the chunks without a used block back, once nothing touches them any more."""
        if self._emptied:
            synchronize()
            self._range.unmap(sorted(self._emptied))
            self._emptied.clear()

    def audit(self) -> None:
        """Raise ``AssertionError`` unless blocks and chunks agree."""
        self.ledger.audit()
        if self._range.mapped != self.ledger.used_positions() | self._emptied:
            raise AssertionError(
                f"chunks mapped: {sorted(self._range.mapped)}, "
                f"used: {sorted(self.ledger.used_positions())}, leaving: {sorted(self._emptied)}"
            )
