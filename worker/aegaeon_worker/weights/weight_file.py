"""A packed weight file, mapped and pinned."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import torch

from aegaeon.errors import EngineError
from aegaeon_worker.device import libc
from aegaeon_worker.device.host_memory import tensor_at
from aegaeon_worker.device.interface import HostPinning
from aegaeon_worker.weights.file_lock import is_linked
from aegaeon_worker.weights.layout import WeightLayout
from aegaeon_worker.weights.manifest import Manifest, data_offset

_POPULATE_NBYTES = 256 << 20
_POPULATE_THREADS = 8


def layout_views(layout: WeightLayout, data: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every tensor of ``layout`` by name, as a view of the uint8 bytes ``data``."""
    views = {}
    for slot in layout.slots():
        raw = data[slot.offset : slot.offset + slot.spec.nbytes]
        views[slot.spec.name] = raw.view(slot.spec.dtype).view(slot.spec.shape)
    return views


class MappedFile:
    """One process's mapping of a weight file; it outlives the pins, so a switch takes no faults.

    Pinned means that this process holds the file's shared ``flock``; the kernel drops it when the
    process dies. An evicted file is truncated before it is unlinked, so that a mapping that nobody
    pins keeps no memory.
    """

    def __init__(self, path: Path, fd: int, manifest: Manifest, *, writable: bool = False) -> None:
        """Take over ``fd``, an open file that this process holds locked."""
        self.path = path
        self.manifest = manifest
        self.fd = fd
        self._mutex = threading.Lock()
        self._pins = 0
        self._nbytes = manifest.layout.nbytes
        offset = data_offset(manifest.encode())
        self._address = libc.map_file(fd, offset, self._nbytes, writable=writable)
        if not writable:
            _populate(self._address, self._nbytes)
        self.data = tensor_at(self._address, torch.uint8, (self._nbytes,))
        self._pinning: HostPinning | None = None

    def pin_to(self, pinning: HostPinning) -> None:
        """Begin to make the mapping, which nobody writes any more, fast to copy from."""
        pinning.pin_host(self._address, self._nbytes, read_only=True)
        self._pinning = pinning

    def seal(self) -> None:
        """Make the mapping read-only, so that no stray write corrupts every worker's weights."""
        libc.forbid_writes(self._address, self._nbytes)

    @property
    def pinned(self) -> bool:
        """Whether anything in this process uses the file."""
        return self._pins > 0

    def pin(self) -> bool:
        """Count one user; false if the file has been evicted meanwhile."""
        with self._mutex:
            if self._pins == 0:
                fcntl.flock(self.fd, fcntl.LOCK_SH)
                if not is_linked(self.fd):
                    fcntl.flock(self.fd, fcntl.LOCK_UN)
                    return False
            self._pins += 1
            self._stamp()
            return True

    def unpin(self) -> None:
        """Drop one user; without users the file may be evicted, least recently used first."""
        with self._mutex:
            self._pins -= 1
            self._stamp()
            if self._pins == 0:
                fcntl.flock(self.fd, fcntl.LOCK_UN)

    def _stamp(self) -> None:
        # The kernel's own "now" is a clock tick old, too coarse to order two uses.
        now = time.time_ns()
        os.utime(self.fd, ns=(now, now))

    def close(self) -> None:
        """Unmap the file; its tensors must never be touched again."""
        if self._pinning is not None:
            self._pinning.unpin_host(self._address)
        libc.unmap(self._address, self._nbytes)
        os.close(self.fd)


def _populate(address: int, nbytes: int) -> None:
    """Fill in the page table: a thread does so for 8 GB a second."""

    def populate(start: int) -> None:
        piece = min(_POPULATE_NBYTES, nbytes - start)
        libc.advise(address + start, piece, libc.MADV_POPULATE_READ)

    threads = min(_POPULATE_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, "populate") as executor:
        for _ in executor.map(populate, range(0, nbytes, _POPULATE_NBYTES)):
            pass


class WeightFile:
    """One user's hold on a packed file: it stays in the cache until ``release``."""

    def __init__(self, mapped: MappedFile) -> None:
        self._mapped: MappedFile | None = mapped
        self.model = mapped.manifest.model
        self.fingerprint = mapped.manifest.fingerprint
        self.layout = mapped.manifest.layout

    @property
    def data(self) -> torch.Tensor:
        """uint8 [layout.nbytes], read-only: a write faults."""
        if self._mapped is None:
            raise EngineError(f"the weight file of {self.model} has been released")
        return self._mapped.data

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by name, as a read-only view."""
        return layout_views(self.layout, self.data)

    def release(self) -> None:
        """Let the cache evict the file; its tensors must not be touched again. Idempotent."""
        if self._mapped is not None:
            self._mapped.unpin()
            self._mapped = None

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
