"""The CUDA driver's calls that device memory needs; ``BoundDriver`` makes them.

Handles and addresses are plain integers.
"""

from __future__ import annotations

from typing import Protocol

import torch


class CudaDriver(Protocol):
    """One device; every call but ``done`` raises ``CudaError`` when the driver refuses it."""

    name: str
    uuid: str
    torch_device: torch.device
    granularity: int
    """Bytes that every chunk is a multiple of."""
    read_only_pins: bool
    """Whether memory that the CPU cannot write may be pinned."""
    shareable: bool
    """Whether other processes can be given chunks."""

    def enter(self) -> None:
        """Make the device current on the calling thread, once per thread."""

    def free_nbytes(self) -> int:
        """Free device memory at this moment, for sizing at start only: others use it, too."""

    def create_chunk(self, nbytes: int) -> int:
        """Allocate physical memory."""

    def release_chunk(self, chunk: int) -> None:
        """Give physical memory back; it goes once it is mapped nowhere."""

    def export_chunk(self, chunk: int) -> int:
        """A new file descriptor, by which another process of this machine can map a chunk."""

    def import_chunk(self, fd: int) -> int:
        """A chunk of another process, to be mapped and released like an own one.

        The memory lives until all processes have released it. ``fd`` stays the caller's.
        """

    def readable(self) -> frozenset[str]:
        """``uuid`` of the devices whose memory this one can read, its own included."""

    def reserve(self, nbytes: int) -> int:
        """Reserve addresses."""

    def free(self, address: int, nbytes: int) -> None:
        """End a reservation."""

    def map(self, address: int, nbytes: int, chunk: int) -> None:
        """Map a chunk; nothing may touch it until ``allow``."""

    def allow(self, address: int, nbytes: int) -> None:
        """Let the device read and write mapped addresses."""

    def unmap(self, address: int, nbytes: int) -> None:
        """Take a chunk away."""

    def stream(self) -> int:
        """Create a stream that does not wait for the default stream."""

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream."""

    def compute_stream(self) -> int:
        """The stream that this thread's torch operations go to."""

    def synchronize(self, stream: int) -> None:
        """Block until a stream is empty."""

    def idle(self, stream: int) -> bool:
        """Whether a stream is empty; never blocks."""

    def event(self) -> int:
        """Create an event."""

    def timer(self) -> int:
        """Create an event that knows when it happened."""

    def elapsed_ns(self, start: int, end: int) -> int:
        """Time between two timers, negative if ``end`` came first; blocks until both happened."""

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""

    def record(self, event: int, stream: int) -> None:
        """Let the event stand for everything queued in the stream so far."""

    def wait(self, stream: int, event: int) -> None:
        """Let what is queued in the stream from now on start after the event."""

    def done(self, event: int) -> bool:
        """Whether the event has happened."""

    def copy_in(self, address: int, host: int, nbytes: int, stream: int) -> None:
        """Queue a copy to the device."""

    def copy_out(self, host: int, address: int, nbytes: int, stream: int) -> None:
        """Queue a copy from the device."""

    def gather(self, pieces: torch.Tensor, stream: int) -> None:
        """Queue copies within what the device has mapped, multiples of 16 bytes, in one kernel.

        ``pieces`` is int64 [pieces, 3]: from which address, to which, and the bytes. It leaves most
        of the device to what runs beside it.
        """

    def pin(self, host: int, nbytes: int, read_only: bool) -> None:
        """Pin host memory."""

    def unpin(self, host: int) -> None:
        """End what ``pin`` began."""

    def close(self) -> None:
        """Leave the device."""
