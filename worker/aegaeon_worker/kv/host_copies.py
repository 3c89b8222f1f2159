"""Sequences' copies in host memory: made, read back, and let go when nothing writes them."""

from __future__ import annotations

from collections import deque

from aegaeon_worker.device.interface import CopyMark
from aegaeon_worker.kv.block_copies import BlockCopies
from aegaeon_worker.kv.errors import OutOfHostBlocks
from aegaeon_worker.kv.place import HostBlock
from aegaeon_worker.kv.prefix_cache import PrefixCache
from aegaeon_worker.kv.prefix_index import HostRun
from aegaeon_worker.kv.sequence import SequenceKv
from aegaeon_worker.kv.shape import BLOCK_TOKENS, KvShape


class HostCopies:
    """Of the sequences of one model."""

    def __init__(self, copies: BlockCopies, cache: PrefixCache) -> None:
        self._copies = copies
        self._cache = cache
        # Blocks of sequences that have ended, which may still be written.
        self._closing: deque[tuple[CopyMark, list[HostBlock]]] = deque()

    @property
    def closing(self) -> list[HostBlock]:
        """Host blocks that no sequence needs, and that copies under way may still write."""
        return [block for _, blocks in self._closing for block in blocks]

    def save(self, kv: SequenceKv, *, spare: bool = False) -> None:
        """Queue what completes the host copy; ``OutOfHostBlocks`` and no change without room.

        ``spare`` as ``HostSlabs.take``.
        """
        if kv.clean:
            return
        known = len(kv.host_blocks)
        missing = self._cache.take_host(kv, KvShape.blocks_for(kv.num_tokens), spare=spare)
        which = [index for index in kv.dirty_blocks() if index < known] + missing
        blocks = [kv.device_blocks[index] for index in which]
        self._copies.to_host(blocks, [kv.host_blocks[index] for index in which])
        first, kv.saved_tokens = kv.saved_tokens // BLOCK_TOKENS, kv.num_tokens
        self._cache.enter_host(kv, first)

    def restore(self, kv: SequenceKv, first: int) -> None:
        """Queue copies of the stored tokens' blocks to the device, from index ``first`` on."""
        last = KvShape.blocks_for(kv.num_tokens)
        self._copies.to_device(kv.device_blocks[first:last], kv.host_blocks[first:last])
        self._cache.enter_restored(kv, first)

    def adopt(self, kv: SequenceKv, run: HostRun) -> None:
        """Copy KV that was kept in host memory to blocks that are there, and wait for it."""
        blocks = kv.device_blocks[kv.num_full : kv.num_full + len(run.keys)]
        self._copies.to_device(blocks, run.blocks)
        self.synchronize()
        self._cache.adopt(kv, run)

    def leave(self, kv: SequenceKv) -> None:
        """A sequence that has shared its blocks ends: save them as well, where there is room.

        Copies to them may be under way afterwards: then they are let go when these have ended.
        """
        while self._closing and self._closing[0][0].done:
            self._cache.let_go_host(self._closing.popleft()[1], keep=True)
        kv.num_tokens = kv.entered * BLOCK_TOKENS
        kv.saved_tokens = min(kv.saved_tokens, kv.num_tokens)
        try:
            self.save(kv, spare=True)
        except OutOfHostBlocks:
            return
        if self._copies.under_way:
            self._closing.append((self._copies.mark(), kv.host_blocks))
            kv.host_blocks = []

    def release(self, kv: SequenceKv, *, keep: bool) -> None:
        """A sequence has no host copy any more; what others can find may be kept."""
        if kv.arrival is not None:
            kv.arrival.close()
        if kv.host_blocks:
            if self._copies.under_way and not kv.published:
                self.synchronize()
            self._cache.let_go_host(kv.host_blocks, keep=keep)
            kv.host_blocks = []
        kv.published = False
        kv.saved_tokens = 0

    def synchronize(self) -> None:
        """Wait for all copies."""
        self._copies.synchronize()
        while self._closing:
            self._cache.let_go_host(self._closing.popleft()[1], keep=True)
