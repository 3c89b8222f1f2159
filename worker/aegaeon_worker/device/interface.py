"""What the rest of the worker asks of a device, CPU or GPU."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Protocol

import torch

from aegaeon_worker.device.pool import DevicePool


class CopyLane(enum.Enum):
    """Copies of one lane run in the order they were queued; lanes do not wait for each other."""

    WEIGHTS = "weights"
    KV = "KV"


class VirtualRange(Protocol):
    """Addresses reserved for one purpose, backed by chunks only where mapped.

    The addresses never change until ``release``. Position ``p`` covers bytes
    ``[p * chunk_nbytes, (p + 1) * chunk_nbytes)``. Touching a position that is not mapped faults.
    """

    @property
    def name(self) -> str:
        """The owner of this range's chunks in the pool's ledger."""

    @property
    def nbytes(self) -> int:
        """Reserved bytes, a multiple of the chunk size."""

    @property
    def mapped(self) -> frozenset[int]:
        """Positions that are backed by a chunk."""

    def chunk(self, position: int) -> int:
        """The chunk that backs a position; ``KeyError`` if none does."""

    def map(self, positions: Iterable[int]) -> None:
        """Back ``positions`` with chunks from the pool: all of them, or an error and none.

        Contents are undefined. ``OutOfChunks`` if the pool lacks chunks; ``ValueError`` for a
        position outside the range or mapped already.
        """

    def unmap(self, positions: Iterable[int]) -> None:
        """Give the chunks of ``positions`` back to the pool; ``ValueError`` if one has none."""

    def tensor(self, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """A dense tensor over the range, ``offset`` in bytes.

        Making it touches no memory, so it may be made before its bytes are mapped.
        """

    def release(self) -> None:
        """Unmap everything and end the reservation; its tensors must never be touched again."""


class CopyMark(Protocol):
    """A point in the queue of a lane's copies."""

    @property
    def done(self) -> bool:
        """Whether every copy before the mark is complete; never blocks."""

    def wait(self) -> None:
        """Order all compute issued from now on after the copies issued before this mark."""


class CopyTail(Protocol):
    """The copies that were queued, but not done, when this was made."""

    @property
    def done(self) -> bool:
        """Whether all of them are done by now; never blocks."""

    def remaining_ns(self, lane: CopyLane) -> int:
        """How much longer those of a lane took; blocks until they are done."""


class HostPinning(Protocol):
    """Makes host memory reachable for the device's copy engines."""

    def pin_host(self, address: int, nbytes: int, *, read_only: bool) -> None:
        """Begin to pin a mapping in the background; ``read_only`` if it cannot be written.

        Copies from and to it are correct before, during and without pinning, only slower. No copy
        may touch two mappings.
        """

    def host_pinned(self, address: int) -> bool:
        """Whether all of the mapping at ``address`` is pinned, so that its memory exists."""

    def unpin_host(self, address: int) -> None:
        """End what ``pin_host`` began, before the mapping goes; blocks while it is under way.

        No copy from or to the mapping may be queued any more.
        """


class Device(HostPinning, Protocol):
    """One accelerator's memory. Only ``pin_host`` and ``unpin_host`` may be called from threads
    other than the one that computes.
    """

    @property
    def name(self) -> str:
        """The product's name."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors over this device's ranges live."""

    @property
    def pool(self) -> DevicePool:
        """The ledger of the physical chunks."""

    @property
    def copy_nbytes(self) -> int:
        """Small copies in a row are worth joining until they have this many bytes."""

    def reserve(self, name: str, nbytes: int, lane: CopyLane) -> VirtualRange:
        """Reserve addresses for at least ``nbytes`` bytes; names are unique while reserved."""

    def fence_copies(self) -> None:
        """Start KV copies queued from now on after all compute and KV copies queued so far."""

    def fence_compute(self) -> None:
        """Start compute queued from now on after all KV copies queued so far, in and out."""

    def copy_in(self, target: VirtualRange, offset: int, source: torch.Tensor) -> None:
        """Queue a copy of a contiguous host tensor's bytes to ``offset`` of a mapped range.

        ``source`` must stay valid and unchanged until the copy is done.
        """

    def copy_out(self, source: VirtualRange, offset: int, target: torch.Tensor) -> None:
        """Queue a copy from ``offset`` of a mapped range that fills a contiguous host tensor.

        ``target`` holds the bytes after ``synchronize``.
        """

    def mark(self, lane: CopyLane) -> CopyMark:
        """A mark after every copy of the lane that was queued so far."""

    def tail(self) -> CopyTail:
        """What is left to be copied at this moment."""

    def synchronize(self, lane: CopyLane) -> None:
        """Block until a lane's copies, and all compute queued by this thread, are done.

        Needed before a chunk is unmapped and before a source of copies changes.
        """

    def close(self) -> None:
        """Release every range and all physical memory."""
