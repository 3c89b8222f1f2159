"""The bytes of a node's slabs: one sparse file that every worker maps."""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path

import torch

from aegaeon_worker.device import libc
from aegaeon_worker.device.host_memory import tensor_at
from aegaeon_worker.device.interface import HostPinning
from aegaeon_worker.kv.errors import KvMemoryError
from aegaeon_worker.weights.errors import SharedMemoryFull
from aegaeon_worker.weights.space import allocate, allocated_nbytes, require_room

_logger = logging.getLogger(__name__)

_PURPOSE = "the KV slabs' budget"
#: A slab's memory is allocated in steps: zeroing all of it at once would stall a turn.
_STEP_NBYTES = 16 << 20


class SlabMemory:
    """``num_slabs`` slabs side by side. Their bytes are allocated before they are touched, so that
    a full file system reads as "no room" and kills nobody.
    """

    def __init__(
        self, directory: Path, num_slabs: int, slab_nbytes: int, pinning: HostPinning | None
    ) -> None:
        """As ``HostSlabs``."""
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
        # Bytes from a slab's start that exist and that this process has mapped, owned or not.
        self._ready_nbytes = [0] * num_slabs
        # Whether the log has the news that the file system is full.
        self._told_full = False
        self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._join()
            self.address = libc.map_file(self.fd, 0, self._nbytes, writable=True)
        except BaseException:
            os.close(self.fd)
            raise
        self.data = tensor_at(self.address, torch.uint8, (self._nbytes,))
        """uint8 [num_slabs * slab_nbytes]."""
        self._pinning = pinning
        if pinning is not None:
            # Slab by slab, because the first ones are used first, and no copy crosses slabs.
            for address in self._slab_addresses():
                pinning.pin_host(address, slab_nbytes, read_only=False)

    def extend(self, number: int, nbytes: int) -> bool:
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
            allocate(self.fd, start, end - ready, self._directory, f"KV slab {number}")
        except SharedMemoryFull as error:
            if not self._told_full:
                _logger.warning("%s; KV will be recomputed instead of kept", error)
            self._told_full = True
            return False
        self._told_full = False
        libc.advise(self.address + start, end - ready, libc.MADV_POPULATE_WRITE)
        self._ready_nbytes[number] = end
        return True

    def close(self) -> None:
        """Unmap; ``data`` must never be touched again."""
        if self._pinning is not None:
            for address in self._slab_addresses():
                self._pinning.unpin_host(address)
        libc.unmap(self.address, self._nbytes)
        os.close(self.fd)

    def _slab_addresses(self) -> range:
        return range(self.address, self.address + self._nbytes, self.slab_nbytes)

    def _join(self) -> None:
        size = os.fstat(self.fd).st_size
        if size not in (0, self._nbytes):
            raise KvMemoryError(
                f"{self._path} has {size} bytes, not {self.num_slabs} slabs of "
                f"{self.slab_nbytes}; all workers of a node need the same slab settings"
            )
        missing = self._nbytes - allocated_nbytes(self._path)
        require_room(self._directory, _PURPOSE, missing)
        os.ftruncate(self.fd, self._nbytes)
