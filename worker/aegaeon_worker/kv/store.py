"""The KV of one model's sequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import torch

from aegaeon_worker.device.errors import OutOfChunks
from aegaeon_worker.device.interface import CopyLane, Device, VirtualRange
from aegaeon_worker.kv.block_ledger import BlockLedger
from aegaeon_worker.kv.errors import SequenceNotResident
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.imports import Imports
from aegaeon_worker.kv.place import HostBlock, KvPlace
from aegaeon_worker.kv.sequence import SequenceKv, copy_runs
from aegaeon_worker.kv.shape import KvShape, kv_range
from aegaeon_worker.kv.transfers import TransferMeter, Transfers


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
    ) -> None:
        """Reserve addresses for as many blocks as the whole pool could hold.

        ``fingerprint`` names the weights, for workers that go on with each other's KV.
        """
        slabs.require_block(shape.host_nbytes)
        self.shape = shape
        self._device = device
        self._slabs = slabs
        self._meter = meter
        self._range = device.reserve(kv_range(name), device.pool.nbytes, CopyLane.KV)
        self.tensor = shape.tensor_over(self._range, device.pool.nbytes)
        """[num_blocks, *block_shape]; only blocks in block tables are mapped, others fault."""
        self._ledger = BlockLedger(len(self.tensor), shape.block_nbytes, device.pool.chunk_nbytes)
        self._sequences: dict[int, SequenceKv] = {}
        self._emptied: set[int] = set()
        self._content = shape.content(fingerprint)
        self.imports = Imports(slabs, shape, self._content)
        # Whether copies were queued since they were last waited for, and whether blocks were freed
        # under copies to the host that compute has not been ordered after.
        self._copying = False
        self._writing = False

    def __getitem__(self, sequence: int) -> SequenceKv:
        """The state of one sequence, to be read only; ``KeyError`` if it was never added."""
        return self._sequences[sequence]

    @property
    def num_chunks(self) -> int:
        """Chunks in use."""
        return len(self._range.mapped) - len(self._emptied)

    @property
    def num_leaving(self) -> int:
        """Chunks that ``settle`` will give back."""
        return len(self._emptied)

    def add(self, sequence: int, source: KvPlace | None = None) -> None:
        """Start a sequence without KV; ``ValueError`` if it exists.

        ``source`` is where another worker left its KV: on this node it counts as stored, and is
        copied in when it is first needed on the device. ``imports`` tells what became of it.
        """
        if sequence in self._sequences:
            raise ValueError(f"sequence {sequence} exists already")
        kv = self._sequences[sequence] = SequenceKv()
        if source is not None:
            self.imports.admit(sequence, kv, source)

    def missing_chunks(self, wants: Iterable[tuple[int, int]]) -> int:
        """Chunks to map for ``ensure_capacity`` of all these pairs of sequence and tokens."""
        needed = sum(self._sequences[s].missing_blocks(tokens) for s, tokens in wants)
        if needed > self._ledger.num_free:
            return self._ledger.positions_for(needed)
        taken = self._ledger.take(needed)
        self._ledger.give_back(taken.blocks)
        return len(set(taken.new_positions) - self._emptied)

    def ensure_capacity(self, sequence: int, num_tokens: int) -> None:
        """Bring the stored KV to the device, with room for ``num_tokens`` tokens in all.

        Copies are queued; compute issued from now on starts after them. Those of KV that another
        worker left are to be confirmed before compute. ``OutOfChunks`` and no change if the pool
        lacks chunks.
        """
        kv = self._sequences[sequence]
        was_resident = kv.resident
        needed = kv.missing_blocks(num_tokens)
        if needed > 0:
            kv.device_blocks.extend(self._take(needed))
        if kv.arrival is not None:
            if not kv.arrival.closed:  # too late: compute does not wait for the wire
                self._release_host(kv)
            self.imports.settle(sequence, kv)
        if not was_resident:
            if kv.foreign is None:
                self._copy_in(kv, kv.host_blocks)
            else:
                self._import(sequence, kv, kv.foreign)
            self._device.fence_compute()

    def confirm_imports(self) -> None:
        """Wait for copies of KV that other workers left; what was not theirs to the end is lost."""
        for sequence in self.imports.confirm(self._synchronize):
            kv = self._sequences[sequence]
            self._release_host(kv)
            kv.forget_tokens()

    def commit(self, sequence: int, num_tokens: int) -> None:
        """Declare that the device holds the KV of ``num_tokens`` tokens, more or fewer than before.

        ``SequenceNotResident`` if its blocks do not hold that many.
        """
        kv = self._sequences[sequence]
        if not kv.resident or len(kv.device_blocks) < KvShape.blocks_for(num_tokens):
            raise SequenceNotResident(
                f"sequence {sequence} has {len(kv.device_blocks)} blocks on the device, "
                f"too few for {num_tokens} tokens"
            )
        kv.num_tokens = num_tokens
        kv.saved_tokens = min(kv.saved_tokens, num_tokens)

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
        kv = self._sequences[sequence]
        if kv.clean:
            return
        missing = KvShape.blocks_for(kv.num_tokens) - len(kv.host_blocks)
        if missing > 0:
            kv.host_blocks.extend(self._slabs.take(self.shape.host_nbytes, missing))
        self._copy(kv.device_blocks, kv.host_blocks, kv.dirty_blocks(), self._device.copy_out)
        kv.saved_tokens = kv.num_tokens

    def swap_out(self, sequence: int) -> None:
        """Complete the host copy and free the device blocks; errors as ``write_back``.

        The copy is only queued, so that those of many sequences run in a row: the chunks that it
        frees stay mapped until ``settle``.
        """
        self.write_back(sequence)
        self._release_device(self._sequences[sequence])
        self._writing = self._copying

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
        self._release_device(kv)
        return KvPlace(kv.num_tokens, self.shape.host_nbytes, runs)

    def settle(self) -> None:
        """Give the chunks without a used block back, once nothing touches them any more."""
        if self._emptied:
            self._synchronize()
            self._range.unmap(sorted(self._emptied))
            self._emptied.clear()

    def drop_host_copy(self, sequence: int) -> None:
        """Free the host blocks of a resident sequence; ``SequenceNotResident`` otherwise."""
        kv = self._sequences[sequence]
        if not kv.resident:
            raise SequenceNotResident(f"the host copy of sequence {sequence} is the only one")
        self._release_host(kv)

    def drop(self, sequence: int) -> None:
        """Lose all KV of a sequence; it stays, without tokens."""
        kv = self._sequences[sequence]
        self._release_device(kv)
        self._release_host(kv)
        kv.forget_tokens()

    def free(self, sequence: int) -> None:
        """End a sequence and free its KV."""
        self.drop(sequence)
        self.imports.forget(sequence)
        del self._sequences[sequence]

    def audit(self) -> None:
        """Raise ``AssertionError`` unless blocks, chunks and sequences agree."""
        self._ledger.audit()
        owned = [block for kv in self._sequences.values() for block in kv.device_blocks]
        if len(set(owned)) != len(owned) or len(owned) != self._ledger.num_used:
            raise AssertionError(f"device blocks of sequences: {sorted(owned)}")
        if self._range.mapped != self._ledger.used_positions() | self._emptied:
            raise AssertionError(
                f"chunks mapped: {sorted(self._range.mapped)}, "
                f"used: {sorted(self._ledger.used_positions())}, leaving: {sorted(self._emptied)}"
            )

    def close(self) -> None:
        """Free every sequence and end the reservation."""
        for sequence in list(self._sequences):
            self.free(sequence)
        self.settle()
        self._range.release()

    def _take(self, count: int) -> list[int]:
        pool = self._device.pool
        if count > self._ledger.num_free:
            needed = self._ledger.positions_for(count)
            name = self._range.name
            raise OutOfChunks(name, needed, pool.num_free, pool.num_chunks, pool.chunk_nbytes)
        taken = self._ledger.take(count)
        # Chunks that were about to leave stay.
        staying = self._emptied.intersection(taken.new_positions)
        try:
            self._range.map(p for p in taken.new_positions if p not in staying)
        except BaseException:
            self._ledger.give_back(taken.blocks)
            raise
        self._emptied -= staying
        if self._writing:
            # The blocks may still be on their way to the host.
            self._device.fence_compute()
            self._writing = False
        return taken.blocks

    def _copy_in(self, kv: SequenceKv, host: Sequence[HostBlock]) -> None:
        which = range(KvShape.blocks_for(kv.num_tokens))
        self._copy(kv.device_blocks, host, which, self._device.copy_in)

    def _import(self, sequence: int, kv: SequenceKv, place: KvPlace) -> None:
        """Copy foreign KV to blocks that are there, unless it is gone."""
        if self.imports.copy(sequence, place, lambda: self._copy_in(kv, place.blocks)):
            kv.foreign = None
            kv.saved_tokens = 0
        else:
            kv.forget_tokens()

    def _copy(
        self,
        device: Sequence[int],
        host: Sequence[HostBlock],
        which: range,
        copy: Callable[[VirtualRange, int, torch.Tensor], None],
    ) -> None:
        """Copy the blocks with these indices one way or the other, run by run."""
        start_ns = time.perf_counter_ns()
        self._device.fence_copies()
        self._copying = True
        nbytes = self.shape.block_nbytes
        longest = None if self.shape.pieces == 1 else 1  # other ranks' pieces lie between
        part = slice(which.start, which.stop)
        for run in copy_runs(device[part], host[part], longest=longest):
            view = self._slabs.view(run.host_block, run.count, self.shape.host_nbytes)
            copy(self._range, run.device_block * nbytes, view[: run.count * nbytes])
        elapsed_ns = time.perf_counter_ns() - start_ns
        self._meter.add(Transfers(kv_bytes=len(which) * nbytes, kv_ns=elapsed_ns))

    def _release_device(self, kv: SequenceKv) -> None:
        self._emptied.update(self._ledger.give_back(kv.device_blocks))
        kv.device_blocks = []

    def _release_host(self, kv: SequenceKv) -> None:
        if kv.arrival is not None:
            kv.arrival.close()
        if kv.host_blocks:
            if self._copying and not kv.published:
                self._synchronize()
            self._slabs.give_back(kv.host_blocks)
            kv.host_blocks = []
        kv.published = False
        kv.saved_tokens = 0

    def _synchronize(self) -> None:
        self._device.synchronize(CopyLane.KV)
        self._copying = self._writing = False
