"""The KV of one model's sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from aegaeon_worker.device.interface import CopyLane, Device
from aegaeon_worker.kv.block_copies import BlockCopies
from aegaeon_worker.kv.errors import SequenceNotResident
from aegaeon_worker.kv.host_copies import HostCopies
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.imports import Imports
from aegaeon_worker.kv.mapped_blocks import MappedBlocks
from aegaeon_worker.kv.peer_blocks import PeerBlocks
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.prefix_cache import PrefixCache
from aegaeon_worker.kv.prefix_keys import Prefix, PrefixKeys
from aegaeon_worker.kv.prefix_use import Reused
from aegaeon_worker.kv.sequence import SequenceKv
from aegaeon_worker.kv.shape import BLOCK_TOKENS, KvShape, kv_range
from aegaeon_worker.kv.transfers import TransferMeter


class KvStore:
    """Block tables over one virtual range, with copies in host slabs.

    A store belongs to one set of weights and dies with it: KV never outlives the weights that
    computed it, even if a model of the same name follows.
    """

    def __init__(
        self,
        device: Device,
        name: str,
        shape: KvShape,
        fingerprint: str,
        slabs: HostSlabs,
        meter: TransferMeter,
        *,
        shares: bool,
    ) -> None:
        """Reserve addresses for as many blocks as the whole pool could hold.

        ``fingerprint`` names the weights, for workers that go on with each other's KV. Sequences
        have the KV of common prefixes in common if the store ``shares`` any.
        """
        slabs.require_block(shape.host_nbytes)
        self.shape = shape
        self._slabs = slabs
        self._range = device.reserve(kv_range(name), device.pool.nbytes, CopyLane.KV)
        self._blocks = MappedBlocks(device.pool, self._range, shape.block_nbytes)
        self._copies = BlockCopies(device, self._range, slabs, shape, meter)
        self.ledger = self._blocks.ledger
        """To be read only."""
        self.tensor = shape.tensor_over(self._range, device.pool.nbytes)
        """[num_blocks, *block_shape]; only blocks in block tables are mapped, others fault."""
        self._sequences: dict[int, SequenceKv] = {}
        self._content = shape.content(fingerprint)
        self.cache = PrefixCache(self.ledger, slabs, shape.host_nbytes, self._content)
        self.imports = Imports(slabs, shape, fingerprint, self.cache)
        self._host = HostCopies(self._copies, self.cache)
        self.peer_blocks = PeerBlocks(
            self._range, self._blocks, self.cache, shape, self._content, device.pool.chunk_nbytes
        )
        """For sequences that come from other workers' devices, or are copied to them."""
        self._shares = shares
        # Those with more reused tokens than were told.
        self._reused: dict[int, None] = {}

    def __getitem__(self, sequence: int) -> SequenceKv:
        """The state of one sequence, to be read only; ``KeyError`` if it was never added."""
        return self._sequences[sequence]

    @property
    def num_chunks(self) -> int:
        """Chunks in use, those with nothing but kept blocks included."""
        return self._blocks.num_chunks

    @property
    def num_leaving(self) -> int:
        """Chunks that ``settle`` will give back."""
        return self._blocks.num_leaving

    def add(
        self, sequence: int, source: KvPlace | None = None, prefix: Prefix | None = None
    ) -> None:
        """Start a sequence without KV; ``ValueError`` if it exists.

        ``source`` is where another worker left its KV: on this node it counts as stored, and is
        copied in when it is first needed on the device. ``imports`` tells what became of it. With a
        ``prefix`` it uses what there is for its tokens by then, and leaves its own for others.
        """
        if sequence in self._sequences:
            raise ValueError(f"sequence {sequence} exists already")
        kv = self._sequences[sequence] = SequenceKv()
        if prefix is not None and self._shares:
            kv.keys = PrefixKeys(self._content, prefix)
        if source is not None:
            self.imports.admit(sequence, kv, source)

    def missing_chunks(self, wants: Iterable[tuple[int, int]]) -> int:
        """Chunks to map for ``ensure_capacity`` of all these pairs of sequence and tokens."""
        needed = sum(self._sequences[s].missing_blocks(tokens) for s, tokens in wants)
        return self._blocks.missing_chunks(needed)

    def ensure_capacity(self, sequence: int, num_tokens: int) -> None:
        """Bring the stored KV to the device, with room for ``num_tokens`` tokens in all.

        KV that is there for further tokens counts as stored, too. Copies are queued; compute issued
        from now on starts after them. Those of KV that another worker left are to be confirmed
        first. ``OutOfChunks``, and no more change than by ``share``, if the pool lacks chunks.
        """
        kv = self._sequences[sequence]
        if kv.is_ready(num_tokens):
            return
        self.imports.settle_pull(sequence, kv)
        self.share(sequence)
        was_resident, present = kv.resident, len(kv.device_blocks)
        run = self.cache.on_host(kv)
        found = 0 if run is None else kv.num_tokens + len(run.keys) * BLOCK_TOKENS
        try:
            self._extend(kv, kv.missing_blocks(max(num_tokens, found)))
        except BaseException:
            if run is not None:
                self.cache.give_up(run)
            raise
        if kv.arrival is not None:
            if not kv.arrival.closed:  # too late: compute does not wait for the wire
                self._host.release(kv, keep=False)
            self.imports.settle(sequence, kv)
        if not was_resident:
            if kv.foreign is None:
                self._host.restore(kv, present)
            else:
                self._import(sequence, kv, kv.foreign)
        if run is not None:
            self._host.adopt(kv, run)
            self._reused[sequence] = None
        if run is not None or not was_resident:
            self._copies.fence()

    def share(self, sequence: int) -> None:
        """Let a sequence use device blocks that hold the KV of its next tokens; needs no room."""
        kv = self._sequences[sequence]
        before = kv.reused_tokens
        self._blocks.empty(self.cache.share(kv))
        if kv.reused_tokens != before:
            self._reused[sequence] = None

    def confirm_imports(self) -> None:
        """Wait for copies of KV that other workers left; what was not theirs to the end is lost."""
        for sequence in self.imports.confirm(self._host.synchronize):
            kv = self._sequences[sequence]
            self._host.release(kv, keep=False)
            kv.forget_tokens()

    def commit(self, sequence: int, num_tokens: int) -> None:
        """Declare that the device holds the KV of ``num_tokens`` tokens, more or fewer than before.

        ``SequenceNotResident`` if its blocks do not hold that many; ``ValueError`` if they are
        fewer than those in blocks that other sequences use as well.
        """
        kv = self._sequences[sequence]
        if not kv.resident or len(kv.device_blocks) < KvShape.blocks_for(num_tokens):
            raise SequenceNotResident(
                f"sequence {sequence} has {len(kv.device_blocks)} blocks on the device, "
                f"too few for {num_tokens} tokens"
            )
        full = num_tokens // BLOCK_TOKENS
        if full < kv.entered:
            self.cache.withdraw(kv, full)
            self._host.release(kv, keep=False)
        kv.num_tokens = num_tokens
        kv.saved_tokens = min(kv.saved_tokens, num_tokens)
        if full > kv.entered:
            self.cache.enter(kv)

    def block_table(self, sequence: int) -> list[int]:
        """Device block ids in token order; ``SequenceNotResident`` if the KV is swapped out."""
        kv = self._sequences[sequence]
        if not kv.resident:
            raise SequenceNotResident(f"the KV of sequence {sequence} is not on the device")
        return list(kv.device_blocks)

    def write_back(self, sequence: int) -> None:
        """Complete the host copy; only blocks that changed are copied.

        ``OutOfHostBlocks`` and no change if the slabs are full.
        """
        self._host.save(self._sequences[sequence])

    def swap_out(self, sequence: int) -> None:
        """Complete the host copy and free the device blocks; errors as ``write_back``.

        The copy is only queued, so that those of many sequences run in a row: the chunks that it
        frees stay mapped until ``settle``.
        """
        self.write_back(sequence)
        self._release_device(self._sequences[sequence], keep=False)

    def publish(self, sequence: int) -> KvPlace:
        """Free the device blocks and let other workers read the host copy until it is freed.

        The host copy must be complete, and the copies to it done. ``OutOfHostBlocks`` and no change
        if there is no room to say so.
        """
        kv = self._sequences[sequence]
        assert kv.clean
        blocks = kv.host_blocks[: KvShape.blocks_for(kv.num_tokens)]
        runs = self._slabs.publish(blocks, self._content)
        kv.published = True
        self._release_device(kv, keep=True)
        return KvPlace(kv.num_tokens, self.shape.host_nbytes, runs, pieces=self.shape.pieces)

    def settle(self) -> None:
        """Give the chunks without a used block back, once nothing touches them any more."""
        self._blocks.settle(self._host.synchronize)

    def tidy(self) -> bool:
        """Wait for what sequences that have ended leave in host memory; whether there was any."""
        if waits := bool(self._host.closing):
            self._host.synchronize()
        return waits

    def evict(self, blocks: Iterable[int]) -> None:
        """Drop blocks that rest in the ledger."""
        self._free_blocks(self.cache.evict_device(blocks))

    def drop_host_copy(self, sequence: int) -> None:
        """Free the host blocks of a resident sequence; ``SequenceNotResident`` otherwise."""
        kv = self._sequences[sequence]
        if not kv.resident:
            raise SequenceNotResident(f"the host copy of sequence {sequence} is the only one")
        self._host.release(kv, keep=False)

    def drop(self, sequence: int) -> None:
        """Lose all KV of a sequence; it stays, without tokens."""
        kv = self._sequences[sequence]
        self._release_device(kv, keep=False)
        self._host.release(kv, keep=False)
        kv.forget_tokens()

    def free(self, sequence: int, *, sound: bool = True, save: bool = False) -> None:
        """End a sequence; what others could use is kept while nobody needs the room.

        Unless it was ``sound``. To ``save`` it is to have a host copy as well, where there is room.
        """
        kv = self._sequences.pop(sequence)
        self._reused.pop(sequence, None)
        self.imports.forget(sequence)
        if kv.offered is not None:
            kv.offered.close()
        if not sound:
            self.cache.distrust(kv)
        elif save and kv.entered and kv.resident and not kv.published:
            self._host.leave(kv)
        self._release_device(kv, keep=True)
        self._host.release(kv, keep=True)

    def take_reused(self) -> list[Reused]:
        """Sequences that have gone on with KV that was there, since the last call."""
        found, self._reused = self._reused, {}
        return [Reused(sequence, self._sequences[sequence].reused_tokens) for sequence in found]

    def audit(self) -> None:
        """Raise ``AssertionError`` unless blocks, chunks and sequences agree."""
        self._blocks.audit()
        sequences = self._sequences.values()
        self.cache.audit(
            Counter(block for kv in sequences for block in kv.device_blocks),
            Counter(
                [*self._host.closing, *(block for kv in sequences for block in kv.host_blocks)]
            ),
        )

    def close(self) -> None:
        """Free every sequence and end the reservation."""
        for sequence in list(self._sequences):
            self.free(sequence)
        self.tidy()
        self.evict(self.ledger.longest_resting(self.ledger.num_resting))
        self.cache.drop_kept()
        self.settle()
        self._range.release()

    def _extend(self, kv: SequenceKv, count: int) -> None:
        """Give a sequence fresh blocks."""
        if count:
            blocks = self._blocks.take(count)
            self._copies.before_writing()
            self.cache.hold_device(blocks)
            kv.device_blocks.extend(blocks)

    def _import(self, sequence: int, kv: SequenceKv, place: KvPlace) -> None:
        """Copy foreign KV to blocks that are there, unless it is gone."""
        blocks = kv.device_blocks[: KvShape.blocks_for(kv.num_tokens)]
        if self.imports.copy(sequence, place, lambda: self._copies.to_device(blocks, place.blocks)):
            kv.foreign = None
            kv.saved_tokens = 0
        else:
            kv.forget_tokens()

    def _release_device(self, kv: SequenceKv, *, keep: bool) -> None:
        self.peer_blocks.part(kv)
        self._free_blocks(self.cache.let_go_device(kv.device_blocks, keep=keep))
        kv.device_blocks = []

    def _free_blocks(self, emptied: Iterable[int]) -> None:
        self._blocks.empty(emptied)
        self._copies.note_freed()
