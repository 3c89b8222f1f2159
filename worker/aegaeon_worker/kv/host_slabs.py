"""KV blocks in host memory, in slabs shared by the workers of a node."""

from __future__ import annotations

import fcntl
import heapq
import logging
import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from aegaeon_worker.device import libc
from aegaeon_worker.device.host_memory import tensor_at
from aegaeon_worker.device.interface import HostPinning
from aegaeon_worker.kv.errors import KvMemoryError, OutOfHostBlocks
from aegaeon_worker.kv.place import BlockRun, HostBlock, KvPlace, runs_of
from aegaeon_worker.kv.slab_reader import SlabReader
from aegaeon_worker.kv.stamps import BlockStamps
from aegaeon_worker.weights.errors import SharedMemoryFull
from aegaeon_worker.weights.space import allocate, allocated_nbytes, require_room

_logger = logging.getLogger(__name__)

_PURPOSE = "the KV slabs' budget"
#: A slab's memory is allocated in steps: zeroing all of it at once would stall a turn.
_STEP_NBYTES = 16 << 20


class _Slab:
    """A slab this worker owns: blocks of one size.

    The lowest free block is handed out first, so that what is used stays near the slab's start.
    """

    def __init__(self, block_nbytes: int, num_blocks: int) -> None:
        self.block_nbytes = block_nbytes
        self.free = list(range(num_blocks))
        self.used: set[int] = set()
        self.published: set[int] = set()


class HostSlabs:
    """``num_slabs`` slabs in one sparse file; each belongs to one worker at a time, or to none.

    Owning slab ``s`` means holding a lock on byte ``s`` of the file. The kernel keeps that table
    and drops a dead worker's locks, so its slabs are free at once. A slab holds blocks of one size
    and goes back when its last block is freed. Its bytes are allocated before they are touched, so
    a full file system reads as "no room" and kills nobody.

    All workers map all slabs. What an owner publishes, others may copy without asking, as long as
    they check with ``holds`` before and after that it is still the same; see ``BlockStamps``.
    """

    def __init__(
        self,
        directory: Path,
        num_slabs: int,
        slab_nbytes: int,
        pinning: HostPinning | None = None,
    ) -> None:
        """Create or join the node's slab file in ``directory``.

        ``pinning`` makes slabs fast to copy from and to; where it really pins, it allocates them.
        ``SharedMemoryFull`` if the directory cannot hold all slabs; ``KvMemoryError`` if another
        worker of the node uses other numbers.
        """
        if num_slabs < 1 or slab_nbytes < 1 or slab_nbytes % mmap.PAGESIZE:
            raise KvMemoryError(
                f"KV slabs: at least one, of a multiple of {mmap.PAGESIZE} bytes each, "
                f"not {num_slabs} of {slab_nbytes}"
            )
        self.num_slabs = num_slabs
        self.slab_nbytes = slab_nbytes
        self._directory = directory
        self._path = directory / "slabs"
        self._nbytes = num_slabs * slab_nbytes
        self._slabs: dict[int, _Slab] = {}
        # Bytes from a slab's start that exist and that this process has mapped, owned or not.
        self._ready_nbytes = [0] * num_slabs
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._join()
            self._address = libc.map_file(self._fd, 0, self._nbytes, writable=True)
        except BaseException:
            os.close(self._fd)
            raise
        self._stamps = BlockStamps(directory)
        self._data = tensor_at(self._address, torch.uint8, (self._nbytes,))
        self._pinning = pinning
        if pinning is not None:
            # Slab by slab, because the first ones are used first, and no copy crosses slabs.
            for address in self._slab_addresses():
                pinning.pin_host(address, slab_nbytes, read_only=False)

    @property
    def owned(self) -> frozenset[int]:
        """Slabs that this worker owns."""
        return frozenset(self._slabs)

    def require_block(self, block_nbytes: int) -> None:
        """Raise ``KvMemoryError`` unless a slab holds at least one block of this size."""
        if block_nbytes > self.slab_nbytes:
            raise KvMemoryError(
                f"one KV block of {block_nbytes} bytes does not fit into a slab of "
                f"{self.slab_nbytes} bytes; raise cpu_slab_size_bytes"
            )

    def take(self, block_nbytes: int, count: int) -> list[HostBlock]:
        """Hand out ``count`` blocks: all of them, or ``OutOfHostBlocks`` and none."""
        self.require_block(block_nbytes)
        taken: list[HostBlock] = []
        for number in sorted(self._slabs):
            if self._slabs[number].block_nbytes == block_nbytes:
                self._take_from(number, count, taken)
        while len(taken) < count:
            owned = self._own_another(block_nbytes)
            if owned is None:
                self.give_back(taken)
                raise OutOfHostBlocks(
                    f"no room for {count} KV blocks of {block_nbytes} bytes in "
                    f"{self.num_slabs} slabs of {self.slab_nbytes} bytes"
                )
            self._take_from(owned, count, taken)
        return taken

    def give_back(self, blocks: Iterable[HostBlock]) -> None:
        """Free blocks; a slab whose last block is freed goes back to the node."""
        blocks = list(blocks)
        self._withdraw(blocks)
        for block in blocks:
            slab = self._slabs.get(block.slab)
            if slab is None or block.index not in slab.used:
                raise ValueError(f"{block} is not in use by this worker")
            slab.used.remove(block.index)
            heapq.heappush(slab.free, block.index)
            if not slab.used:
                del self._slabs[block.slab]
                self._lock(block.slab, fcntl.F_UNLCK)

    def view(self, first: HostBlock, count: int, block_nbytes: int) -> torch.Tensor:
        """The bytes of ``count`` consecutive blocks, uint8; to be read only in others' slabs."""
        start = first.slab * self.slab_nbytes + first.index * block_nbytes
        return self._data[start : start + count * block_nbytes]

    def offset_of(self, view: torch.Tensor) -> int:
        """Where the bytes of a ``view`` begin, counted from the start of all slabs."""
        return view.data_ptr() - self._address

    def bytes_at(self, offset: int, nbytes: int) -> torch.Tensor:
        """Bytes that another rank of this worker's engine owns, by ``offset_of`` there."""
        return self._data[offset : offset + nbytes]

    def publish(self, blocks: Sequence[HostBlock], content: int) -> tuple[BlockRun, ...]:
        """Let other workers read complete blocks in use, until these are given back.

        ``content`` says what the bytes mean: readers must expect the same. ``OutOfHostBlocks`` if
        the file system is full.
        """
        runs = runs_of(blocks, BlockStamps.new_generation())
        for run in runs:
            try:
                self._stamps.set(run, content)
            except OSError as error:
                raise OutOfHostBlocks(f"no room to publish {len(blocks)} KV blocks") from error
            self._slabs[run.slab].published.update(block.index for block in run.blocks)
        return runs

    def holds(self, place: KvPlace, content: int) -> bool:
        """Whether all of the place is published as such at this moment, by any worker.

        Its memory exists then, so that it may be read, and stays readable whatever its owner does.
        """
        return all(
            run.slab < self.num_slabs
            and (run.first_block + run.num_blocks) * place.block_nbytes <= self.slab_nbytes
            and self._stamps.match(run, content)
            for run in place.runs
        )

    def reader(self) -> SlabReader:
        """Reads what is published here, by any worker, on another thread than this one's."""
        return SlabReader(self._directory, self._address, self.num_slabs, self.slab_nbytes)

    def audit(self) -> dict[int, int]:
        """Blocks in use by block size; ``AssertionError`` if a slab's books are wrong."""
        used: dict[int, int] = {}
        for number, slab in self._slabs.items():
            every = range(self.slab_nbytes // slab.block_nbytes)
            if not slab.used or sorted([*slab.free, *slab.used]) != list(every):
                raise AssertionError(
                    f"slab {number}: free {sorted(slab.free)}, used {sorted(slab.used)}"
                )
            if not slab.published <= slab.used:
                raise AssertionError(f"slab {number}: published {sorted(slab.published)}")
            used[slab.block_nbytes] = used.get(slab.block_nbytes, 0) + len(slab.used)
        return used

    def close(self) -> None:
        """Give up every slab; its views must never be touched again."""
        if self._pinning is not None:
            for address in self._slab_addresses():
                self._pinning.unpin_host(address)
        libc.unmap(self._address, self._nbytes)
        os.close(self._fd)
        self._stamps.close()
        self._slabs.clear()

    def _slab_addresses(self) -> range:
        return range(self._address, self._address + self._nbytes, self.slab_nbytes)

    def _join(self) -> None:
        size = os.fstat(self._fd).st_size
        if size not in (0, self._nbytes):
            raise KvMemoryError(
                f"{self._path} has {size} bytes, not {self.num_slabs} slabs of "
                f"{self.slab_nbytes}; all workers of a node need the same slab settings"
            )
        missing = self._nbytes - allocated_nbytes(self._path)
        require_room(self._directory, _PURPOSE, missing)
        os.ftruncate(self._fd, self._nbytes)

    def _withdraw(self, blocks: Iterable[HostBlock]) -> None:
        """Let readers of published blocks know before the blocks are handed out again."""
        published = [
            block
            for block in blocks
            if block.slab in self._slabs and block.index in self._slabs[block.slab].published
        ]
        for run in runs_of(published, 0):
            self._stamps.clear(run)
            self._slabs[run.slab].published.difference_update(block.index for block in run.blocks)

    def _take_from(self, number: int, count: int, taken: list[HostBlock]) -> None:
        slab = self._slabs[number]
        while slab.free and len(taken) < count:
            if not self._extend(number, (slab.free[0] + 1) * slab.block_nbytes):
                return
            index = heapq.heappop(slab.free)
            slab.used.add(index)
            taken.append(HostBlock(number, index))

    def _own_another(self, block_nbytes: int) -> int | None:
        for number in range(self.num_slabs):
            if number not in self._slabs and self._lock(number, fcntl.F_WRLCK):
                slab = _Slab(block_nbytes, self.slab_nbytes // block_nbytes)
                if not self._extend(number, block_nbytes):
                    self._lock(number, fcntl.F_UNLCK)
                    return None
                self._stamps.clear_slab(number)
                self._slabs[number] = slab
                return number
        return None

    def _extend(self, number: int, nbytes: int) -> bool:
        """Make sure that the first ``nbytes`` of a slab exist; false if the file system is full."""
        ready = self._ready_nbytes[number]
        if nbytes <= ready:
            return True
        if self._pinning is not None and self._pinning.host_pinned(self._slab_addresses()[number]):
            self._ready_nbytes[number] = self.slab_nbytes
            return True
        end = min(self.slab_nbytes, -(-nbytes // _STEP_NBYTES) * _STEP_NBYTES)
        start = number * self.slab_nbytes + ready
        try:
            allocate(self._fd, start, end - ready, self._directory, f"KV slab {number}")
        except SharedMemoryFull as error:
            _logger.warning("%s; KV will be recomputed instead of kept", error)
            return False
        libc.advise(self._address + start, end - ready, libc.MADV_POPULATE_WRITE)
        self._ready_nbytes[number] = end
        return True

    def _lock(self, number: int, kind: int) -> bool:
        """Lock or unlock one byte for this open file; false if another worker holds it."""
        request = struct.pack("hhqqi4x", kind, os.SEEK_SET, number, 1, 0)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, request)
        except (BlockingIOError, PermissionError):
            return False
        return True
