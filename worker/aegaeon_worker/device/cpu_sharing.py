"""Memory of CPU devices that their processes map from each other."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from aegaeon_worker.device import libc
from aegaeon_worker.device.errors import DeviceMemoryError
from aegaeon_worker.device.interface import CopyMark, VirtualRange
from aegaeon_worker.device.sharing import PeerMemory

if TYPE_CHECKING:
    from aegaeon_worker.device.cpu import CpuDevice


class CpuPeer:
    """See ``PeerMemory``: chunks of a memory file, at the places that they have there."""

    def __init__(self, num_chunks: int, chunk_nbytes: int) -> None:
        self._nbytes = num_chunks * chunk_nbytes
        self._num_chunks = num_chunks
        self._chunk_nbytes = chunk_nbytes
        self._mapped: dict[int, int] = {}

    def missing(self, chunks: Iterable[int]) -> list[int]:
        """See ``PeerMemory``."""
        return [chunk for chunk in chunks if chunk not in self._mapped]

    def add(self, chunk: int, fd: int) -> None:
        """See ``PeerMemory``."""
        size, offset = self._chunk_nbytes, chunk * self._chunk_nbytes
        if not 0 <= chunk < self._num_chunks or os.fstat(fd).st_size < offset + size:
            raise DeviceMemoryError(f"chunk {chunk} is not in the memory that was handed over")
        try:
            self._mapped[chunk] = libc.map_file(fd, offset, size, writable=False)
        except OSError as error:
            raise DeviceMemoryError(f"cannot map chunk {chunk} of another worker") from error

    def copy(self, start: int, nbytes: int, target: int) -> None:
        """Copy a piece, which may lie across chunks."""
        left = nbytes
        while left:
            chunk, skip = divmod(start, self._chunk_nbytes)
            count = min(left, self._chunk_nbytes - skip)
            ctypes.memmove(target, self._mapped[chunk] + skip, count)
            start, target, left = start + count, target + count, left - count

    def close(self) -> None:
        """See ``PeerMemory``."""
        while self._mapped:
            libc.unmap(self._mapped.popitem()[1], self._chunk_nbytes)


class CpuSharing:
    """See ``DeviceSharing``."""

    #: All processes of a machine reach the same memory.
    name = "cpu"
    readable = frozenset({name})

    def __init__(self, device: CpuDevice, fd: int | None) -> None:
        """``fd`` is the file that holds the device's chunks, if they are in one."""
        self._device = device
        self._fd = fd

    @property
    def obstacle(self) -> str:
        """See ``DeviceSharing``."""
        return "" if self._fd is not None else "only prefill workers share their memory"

    def prepare(self) -> None:
        """See ``DeviceSharing``: nothing."""

    def export(self, chunk: int) -> int:
        """See ``DeviceSharing``."""
        if self._fd is None:
            raise DeviceMemoryError(self.obstacle)
        return os.dup(self._fd)

    def open_peer(self, num_chunks: int, chunk_nbytes: int) -> CpuPeer:
        """See ``DeviceSharing``."""
        return CpuPeer(num_chunks, chunk_nbytes)

    def pull(self, target: VirtualRange, source: PeerMemory, pieces: torch.Tensor) -> CopyMark:
        """See ``DeviceSharing``."""
        assert isinstance(source, CpuPeer)
        for start, offset, nbytes in pieces.tolist():
            source.copy(start, nbytes, self._device.address_of(target, offset, nbytes))
        return self._device.done_mark()

    def synchronize(self) -> None:
        """See ``DeviceSharing``: copies are done when they return."""
