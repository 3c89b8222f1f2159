"""Device blocks of one model that other workers read, or that are filled from theirs."""

from __future__ import annotations

from collections.abc import Callable

from aegaeon_worker.device.interface import CopyMark, VirtualRange
from aegaeon_worker.device.sharing import DeviceSharing, PeerMemory
from aegaeon_worker.kv.device_extents import extents_of, pieces_for
from aegaeon_worker.kv.mapped_blocks import MappedBlocks
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.prefix_cache import PrefixCache
from aegaeon_worker.kv.sequence import SequenceKv
from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.peers.lending import Lending
from aegaeon_worker.peers.offer import Extents


class PeerBlocks:
    """Says where blocks lie, and sees to it that none is used for something else too early."""

    def __init__(
        self,
        held: VirtualRange,
        blocks: MappedBlocks,
        cache: PrefixCache,
        shape: KvShape,
        content: int,
        chunk_nbytes: int,
    ) -> None:
        self._range = held
        self._blocks = blocks
        self._cache = cache
        self._shape = shape
        self._content = content
        self._chunk_nbytes = chunk_nbytes

    def offer(self, kv: SequenceKv, lending: Lending, on_withdraw: Callable[[], None]) -> KvPlace:
        """Let others read a resident sequence's KV, which changes no more.

        ``on_withdraw`` is called when its blocks are wanted for something else; its host copy is
        complete then, or about to be.
        """
        nbytes = self._shape.block_nbytes
        blocks = kv.device_blocks[: KvShape.blocks_for(kv.num_tokens)]
        extents = extents_of(blocks, nbytes, self._range, self._chunk_nbytes)
        kv.offered = lending.offer(self._content, extents, on_withdraw)
        return KvPlace(kv.num_tokens, self._shape.host_nbytes, (), offer=kv.offered.name)

    def accepts(self, content: int, num_tokens: int, nbytes: int) -> bool:
        """Whether what others have computed is what this model would."""
        needed = KvShape.blocks_for(num_tokens) * self._shape.block_nbytes
        return content == self._content and nbytes == needed

    def open(self, kv: SequenceKv, num_tokens: int) -> None:
        """Give a sequence the blocks that it is copied to; errors as ``MappedBlocks.take``."""
        blocks = self._blocks.take(KvShape.blocks_for(num_tokens))
        self._cache.hold_device(blocks)
        kv.device_blocks.extend(blocks)

    def pull(
        self, kv: SequenceKv, sharing: DeviceSharing, memory: PeerMemory, extents: Extents
    ) -> CopyMark:
        """Queue the copy of another worker's blocks to those of a sequence."""
        pieces = pieces_for(extents, kv.device_blocks, self._shape.block_nbytes)
        return sharing.pull(self._range, memory, pieces)

    def part(self, kv: SequenceKv) -> None:
        """A sequence's blocks are about to be used for something else."""
        if kv.offered is not None:
            kv.offered.withdraw()
        if kv.pull is not None:
            kv.pull.stop("it had to give way on the device")
