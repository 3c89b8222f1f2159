"""Device memory that processes of one machine read from each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from aegaeon_worker.device.interface import CopyMark, Device, VirtualRange


def cut_parts(
    starts: torch.Tensor, sizes: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cut parts of memory at the multiples of ``size``: whose each is, its start, its bytes."""
    first = starts // size
    counts = ((starts + sizes - 1) // size - first + 1).clamp(min=1)  # an empty one stays one
    whose = torch.repeat_interleave(counts)
    within = torch.arange(len(whose)) - (counts.cumsum(0) - counts)[whose]
    edges = (first[whose] + within) * size
    begins = torch.maximum(edges, starts[whose])
    ends = torch.minimum(edges + size, (starts + sizes)[whose])
    return whose, begins, ends - begins


class PeerMemory(Protocol):
    """The chunks of another process's device, as far as this process has mapped them."""

    def missing(self, chunks: Iterable[int]) -> list[int]:
        """Those that have not been added."""

    def add(self, chunk: int, fd: int) -> None:
        """Map a chunk that the other process exported; ``fd`` stays the caller's.

        From any one thread. ``DeviceMemoryError`` if that cannot be done.
        """

    def close(self) -> None:
        """Unmap everything; no pull from it may be under way."""


class DeviceSharing(Protocol):
    """What a device lends to other processes of its machine, and borrows from them."""

    @property
    def name(self) -> str:
        """Names this device's memory among those of the machine."""

    @property
    def obstacle(self) -> str:
        """Why no other process can read this one's chunks; empty if others can."""

    @property
    def readable(self) -> frozenset[str]:
        """Names of the device memories that this device can read."""

    def prepare(self) -> None:
        """Do ahead of time what the first pull would take long for."""

    def export(self, chunk: int) -> int:
        """A new file descriptor for a chunk of the pool; from any thread."""

    def open_peer(self, num_chunks: int, chunk_nbytes: int) -> PeerMemory:
        """Reserve addresses for another process's chunks."""

    def pull(self, target: VirtualRange, source: PeerMemory, pieces: torch.Tensor) -> CopyMark:
        """Queue copies to mapped parts of ``target``, and a mark behind them.

        ``pieces`` is int64 [pieces, 3]: the start, counted over all chunks of the other process as
        if they lay one after another, the offset in ``target``, and the bytes.

        They start after all compute and KV copies queued so far. Nothing waits for them but who
        looks at the mark. Sizes and places are multiples of 16 bytes.
        """

    def synchronize(self) -> None:
        """Block until all pulls are done."""


class SharingDevice(Device, Protocol):
    """One process's own device, as opposed to that of an engine of several processes."""

    @property
    def sharing(self) -> DeviceSharing:
        """What it lends and borrows."""
