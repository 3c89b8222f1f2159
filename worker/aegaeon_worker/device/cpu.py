"""The CPU as a device: a capacity-limited pool with the same chunks and ranges as a GPU."""

from __future__ import annotations

import mmap
import os
import platform
import sys
from collections.abc import Iterable

import torch

from aegaeon.machine import available_memory
from aegaeon_worker.device import libc
from aegaeon_worker.device.chunk_table import ChunkTable
from aegaeon_worker.device.cpu_sharing import CpuSharing
from aegaeon_worker.device.errors import DeviceMemoryError
from aegaeon_worker.device.host_memory import (
    byte_view,
    dense_nbytes,
    tensor_at,
)
from aegaeon_worker.device.interface import CopyLane, VirtualRange
from aegaeon_worker.device.pool import DevicePool

DEFAULT_CHUNK_NBYTES = 32 << 20


class CpuRange:
    """A ``VirtualRange`` of a ``CpuDevice``; chunks move in and out of it as whole pages."""

    def __init__(self, device: CpuDevice, name: str, num_positions: int) -> None:
        self._device = device
        self._table = ChunkTable(device.pool, name, num_positions)
        self._chunk_nbytes = device.pool.chunk_nbytes
        self.name = name
        self.nbytes = num_positions * self._chunk_nbytes
        self._base = libc.map_private(self.nbytes)

    @property
    def mapped(self) -> frozenset[int]:
        """Positions that are backed by a chunk."""
        return self._table.positions

    def chunk(self, position: int) -> int:
        """The chunk that backs a position; ``KeyError`` if none does."""
        return self._table.chunk(position)

    def address_of(self, offset: int, nbytes: int) -> int:
        """Where bytes of the range are; ``ValueError`` if they are not all in it."""
        self._table.require_bytes(offset, nbytes)
        return self._base + offset

    def map(self, positions: Iterable[int]) -> None:
        """Back ``positions`` with chunks from the pool: all of them, or an error and none."""
        taken = self._table.take(positions)
        moved: list[int] = []
        try:
            for position, chunk in taken.items():
                libc.move_pages(
                    self._device.parking(chunk), self._address(position), self._chunk_nbytes
                )
                moved.append(position)
        except OSError as error:
            self._withdraw(moved)
            self._table.give_back(taken)
            raise DeviceMemoryError(f"cannot map {len(taken)} chunks of {self.name}") from error

    def unmap(self, positions: Iterable[int]) -> None:
        """Give the chunks of ``positions`` back to the pool; ``ValueError`` if one has none."""
        leaving = self._table.require(positions)
        self._withdraw(leaving)
        self._table.give_back(leaving)

    def tensor(self, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """A dense tensor over the range, ``offset`` in bytes; making it touches no memory."""
        self._table.require_bytes(offset, dense_nbytes(dtype, shape))
        return tensor_at(self._base + offset, dtype, shape)

    def release(self) -> None:
        """Unmap everything and end the reservation; its tensors must never be touched again."""
        if self._device.forget(self):
            self.unmap(self.mapped)
            libc.unmap(self._base, self.nbytes)

    def _address(self, position: int) -> int:
        return self._base + position * self._chunk_nbytes

    def _withdraw(self, positions: list[int]) -> None:
        for position in positions:
            address = self._address(position)
            parking = self._device.parking(self._table.chunk(position))
            libc.move_pages(address, parking, self._chunk_nbytes)
            # The kernel leaves the vacated addresses reserved but readable as zeros; a stale
            # reader must fault instead of computing with zeros.
            libc.forbid_access(address, self._chunk_nbytes)


class _DoneMark:
    """Copies on the CPU are done when they return."""

    done = True

    def wait(self) -> None:
        """Nothing is outstanding."""


class _DoneTail:
    """Nothing is left when copies return."""

    done = True

    def remaining_ns(self, lane: CopyLane) -> int:
        """None."""
        return 0


class CpuDevice:
    """A ``Device`` whose chunks are private huge pages, or pages that other processes can map.

    A free chunk lies in a parking range; mapping moves its pages to the model's range by
    ``mremap``, so the bytes are never copied, later touches take no page fault, and addresses are
    as fixed as on a GPU. Pages are first allocated when touched, so an idle worker holds little.
    """

    name = platform.processor() or platform.machine()
    torch_device = torch.device("cpu")
    #: Nothing overlaps with a copy here, and each one makes all of torch's threads meet.
    copy_nbytes = sys.maxsize

    def __init__(
        self, nbytes: int, chunk_nbytes: int = DEFAULT_CHUNK_NBYTES, *, shared: bool = False
    ) -> None:
        """Offer ``nbytes`` (rounded down to whole chunks of a multiple of 2 MiB).

        ``shared`` lets other processes map chunks, which are small pages on most machines then.

        ``DeviceMemoryError`` if the machine has less available, before anything is reserved.
        """
        if chunk_nbytes < 1 or chunk_nbytes % libc.HUGE_PAGE_NBYTES:
            raise ValueError(
                f"chunks must be a multiple of {libc.HUGE_PAGE_NBYTES} bytes, not {chunk_nbytes}"
            )
        if nbytes < chunk_nbytes:
            raise DeviceMemoryError(
                f"device memory of {nbytes} bytes is less than one chunk of {chunk_nbytes} bytes"
            )
        available = available_memory()
        if nbytes > available:
            raise DeviceMemoryError(
                f"device memory of {nbytes} bytes was asked for, but this machine has only "
                f"{available} bytes available; lower the worker's device memory",
                metadata={"needed_bytes": nbytes, "available_bytes": available},
            )
        self.pool = DevicePool(nbytes // chunk_nbytes, chunk_nbytes)
        _require_page_moves()
        self._ranges: dict[str, CpuRange] = {}
        self._base = libc.map_private(self.pool.nbytes)
        self._fd = self._share() if shared else None
        libc.allow_access(self._base, self.pool.nbytes)
        libc.advise(self._base, self.pool.nbytes, mmap.MADV_HUGEPAGE)
        self.sharing = CpuSharing(self, self._fd)
        self._closed = False

    def address_of(self, reserved: VirtualRange, offset: int, nbytes: int) -> int:
        """Where bytes of an open range are; ``ValueError`` if they are not all in it."""
        return self._ranges[reserved.name].address_of(offset, nbytes)

    @staticmethod
    def done_mark() -> _DoneMark:
        """A mark behind copies that have returned."""
        return _DoneMark()

    def _share(self) -> int:
        """Put the chunks into a file that lives as long as somebody maps or holds it."""
        fd = os.memfd_create("aegaeon-device", os.MFD_CLOEXEC)
        os.ftruncate(fd, self.pool.nbytes)
        libc.map_file_at(self._base, fd, self.pool.nbytes)
        return fd

    def parking(self, chunk: int) -> int:
        """The address where ``chunk`` lies while it is free."""
        return self._base + chunk * self.pool.chunk_nbytes

    def reserve(self, name: str, nbytes: int, lane: CopyLane) -> CpuRange:
        """Reserve addresses for at least ``nbytes`` bytes; names are unique while reserved."""
        if name in self._ranges:
            raise ValueError(f"a range named {name} is reserved already")
        reserved = CpuRange(self, name, max(1, self.pool.chunks_for(nbytes)))
        self._ranges[name] = reserved
        return reserved

    def forget(self, leaving: CpuRange) -> bool:
        """Take a range off the list of open ones; false if it was released before."""
        return self._ranges.pop(leaving.name, None) is not None

    def copy_in(self, target: VirtualRange, offset: int, source: torch.Tensor) -> None:
        """Copy a contiguous host tensor's bytes to ``offset`` of a mapped range."""
        data = byte_view(source)
        target.tensor(offset, torch.uint8, (data.numel(),)).copy_(data)

    def copy_out(self, source: VirtualRange, offset: int, target: torch.Tensor) -> None:
        """Fill a contiguous host tensor from ``offset`` of a mapped range."""
        data = byte_view(target)
        data.copy_(source.tensor(offset, torch.uint8, (data.numel(),)))

    def fence_copies(self) -> None:
        """Nothing is outstanding."""

    def fence_compute(self) -> None:
        """Nothing is outstanding."""

    def mark(self, lane: CopyLane) -> _DoneMark:
        """A mark after every copy so far."""
        return _DoneMark()

    def tail(self) -> _DoneTail:
        """Nothing is left to be copied."""
        return _DoneTail()

    def pin_host(self, address: int, nbytes: int, *, read_only: bool) -> None:
        """Do nothing: the CPU reaches all of its memory."""

    def host_pinned(self, address: int) -> bool:
        """Never."""
        return False

    def unpin_host(self, address: int) -> None:
        """Do nothing."""

    def synchronize(self, lane: CopyLane) -> None:
        """Return at once: copies are done when they return."""

    def close(self) -> None:
        """Release every range and all physical memory; closing twice is harmless."""
        if self._closed:
            return
        for reserved in list(self._ranges.values()):
            reserved.release()
        libc.unmap(self._base, self.pool.nbytes)
        if self._fd is not None:
            os.close(self._fd)
        self._closed = True


def _require_page_moves() -> None:
    """Move one page, so that an old kernel is refused at start and not in the first turn."""
    base = libc.map_private(2 * mmap.PAGESIZE)
    try:
        libc.move_pages(base, base + mmap.PAGESIZE, mmap.PAGESIZE)
    except OSError as error:
        raise DeviceMemoryError(
            "the CPU device needs mremap with MREMAP_DONTUNMAP: a Linux kernel from 5.7 on"
        ) from error
    finally:
        libc.unmap(base, 2 * mmap.PAGESIZE)
