"""A CUDA driver in host memory that does nothing before it must.

Copies wait in their streams until something that the program ordered after them happens: a missing
wait shows as wrong bytes, a missing synchronisation as memory taken away under a queued copy.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch

from aegaeon_worker.device import libc
from aegaeon_worker.device.errors import CudaError

GRANULARITY = 2 << 20
COMPUTE = 0
_POISON = 0xDB


@dataclass
class Copy:
    target: int
    source: int
    nbytes: int
    device: int
    """Which of the two addresses is the device's."""

    def touches(self, address: int, nbytes: int) -> bool:
        return any(
            start < address + nbytes and address < start + self.nbytes
            for start in (self.target, self.source)
        )


@dataclass
class PeerCopy(Copy):
    """From memory of another driver, which is looked for when it runs."""

    resolve: Callable[[], int]


@dataclass
class Stream:
    queued: list[Callable[[], None] | Copy] = field(default_factory=list)
    executed: int = 0

    @property
    def pending(self) -> Iterator[Copy]:
        return (item for item in self.queued[self.executed :] if isinstance(item, Copy))


class FakeCuda:
    """See ``CudaDriver``."""

    name = "fake"
    uuid = "0" * 32
    torch_device = torch.device("cpu")
    granularity = GRANULARITY
    read_only_pins = True
    shareable = True
    #: What drivers have exported, by the file that stands for it: whose chunk it is, and its bytes.
    exported: ClassVar[dict[int, tuple[FakeCuda, int, bytearray]]] = {}

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.chunks: dict[int, bytearray] = {}
        self.imported: dict[int, tuple[FakeCuda, int, bytearray]] = {}
        self.reserved: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.allowed: set[int] = set()
        self.streams: dict[int, Stream] = {COMPUTE: Stream()}
        self.events: dict[int, tuple[int, int]] = {}
        self.pinned: dict[int, int] = {}
        self._failing: dict[str, int] = {}
        self._handles = iter(range(1, 1 << 30))

    def fail(self, call: str, nth: int) -> None:
        """The ``nth`` call from now on fails, counted from 1."""
        self._failing[call] = nth

    def run_all(self) -> None:
        """Let the device catch up."""
        for stream in list(self.streams):
            self.synchronize(stream)

    def enter(self) -> None: ...

    def free_nbytes(self) -> int:
        return 1 << 40

    def create_chunk(self, nbytes: int) -> int:
        self._called("cuMemCreate")
        handle = next(self._handles)
        self.chunks[handle] = bytearray([_POISON]) * nbytes
        return handle

    def release_chunk(self, chunk: int) -> None:
        assert chunk not in self.mapped.values()
        del (self.imported if chunk in self.imported else self.chunks)[chunk]

    def export_chunk(self, chunk: int) -> int:
        self._called("cuMemExportToShareableHandle")
        fd = os.memfd_create("chunk", os.MFD_CLOEXEC)
        self.exported[os.fstat(fd).st_ino] = (self, chunk, self.chunks[chunk])
        return fd

    def import_chunk(self, fd: int) -> int:
        self._called("cuMemImportFromShareableHandle")
        handle = next(self._handles)
        self.imported[handle] = self.exported[os.fstat(fd).st_ino]
        return handle

    def readable(self) -> frozenset[str]:
        return frozenset({self.uuid})

    def reserve(self, nbytes: int) -> int:
        self._called("cuMemAddressReserve")
        address = libc.map_private(nbytes)
        libc.allow_access(address, nbytes)
        self.reserved[address] = nbytes
        return address

    def free(self, address: int, nbytes: int) -> None:
        assert self.reserved.pop(address) == nbytes
        assert not any(address <= mapped < address + nbytes for mapped in self.mapped)
        libc.unmap(address, nbytes)

    def map(self, address: int, nbytes: int, chunk: int) -> None:
        self._called("cuMemMap")
        assert address not in self.mapped
        assert chunk not in self.mapped.values()
        self.mapped[address] = chunk
        if chunk in self.imported:
            return
        assert len(self.chunks[chunk]) == nbytes
        source = (ctypes.c_char * nbytes).from_buffer(self.chunks[chunk])
        ctypes.memmove(address, source, nbytes)

    def allow(self, address: int, nbytes: int) -> None:
        self._called("cuMemSetAccess")
        for part in range(address, address + nbytes, GRANULARITY):
            assert part in self.mapped
            self.allowed.add(part)

    def unmap(self, address: int, nbytes: int) -> None:
        self._called("cuMemUnmap")
        for stream in self.streams.values():
            for copy in stream.pending:
                assert not copy.touches(address, nbytes), "unmapped under a queued copy"
        chunk = self.mapped.pop(address)
        self.allowed.discard(address)
        if chunk in self.imported:
            return
        self.chunks[chunk][:] = ctypes.string_at(address, nbytes)
        ctypes.memset(address, _POISON, nbytes)

    def stream(self) -> int:
        handle = next(self._handles)
        self.streams[handle] = Stream()
        return handle

    def destroy_stream(self, stream: int) -> None:
        self.synchronize(stream)
        del self.streams[stream]

    def compute_stream(self) -> int:
        return COMPUTE

    def synchronize(self, stream: int) -> None:
        self._called("cuStreamSynchronize")
        self._run(stream, len(self.streams[stream].queued))

    def idle(self, stream: int) -> bool:
        return self.streams[stream].executed == len(self.streams[stream].queued)

    def event(self) -> int:
        handle = next(self._handles)
        self.events[handle] = (COMPUTE, 0)
        return handle

    def timer(self) -> int:
        return self.event()

    def elapsed_ns(self, start: int, end: int) -> int:
        for event in (start, end):
            self._run(*self.events[event])
        return 1000

    def destroy_event(self, event: int) -> None:
        # What waits for the event has noted where it stands.
        del self.events[event]

    def record(self, event: int, stream: int) -> None:
        self.events[event] = (stream, len(self.streams[stream].queued))

    def wait(self, stream: int, event: int) -> None:
        where, upto = self.events[event]
        if stream == COMPUTE:
            self._run(where, upto)  # compute runs on the host, at once
        else:
            self.streams[stream].queued.append(lambda: self._run(where, upto))

    def done(self, event: int) -> bool:
        where, upto = self.events[event]
        return self.streams[where].executed >= upto

    def copy_in(self, address: int, host: int, nbytes: int, stream: int) -> None:
        self._called("cuMemcpyHtoDAsync")
        self.streams[stream].queued.append(Copy(address, host, nbytes, address))

    def copy_out(self, host: int, address: int, nbytes: int, stream: int) -> None:
        self._called("cuMemcpyDtoHAsync")
        self.streams[stream].queued.append(Copy(host, address, nbytes, address))

    def gather(self, pieces: torch.Tensor, stream: int) -> None:
        self._called("gather")
        queued = self.streams[stream].queued
        for source, target, nbytes in pieces.tolist():
            done = 0
            while done < nbytes:
                at = source + done
                base = max(address for address in self.mapped if address <= at)
                owner, chunk, memory = self.imported[self.mapped[base]]
                count = min(nbytes - done, len(memory) - (at - base))
                resolve = partial(owner.bytes_of, chunk, memory, at - base)
                queued.append(PeerCopy(target + done, at, count, target + done, resolve))
                done += count

    def bytes_of(self, chunk: int, memory: bytearray, skip: int) -> int:
        """Where bytes of a chunk are at this moment, mapped or not, released or not."""
        for address, mapped in self.mapped.items():
            if mapped == chunk:
                return address + skip
        return ctypes.addressof(ctypes.c_char.from_buffer(memory, skip))

    def pin(self, host: int, nbytes: int, read_only: bool) -> None:
        self._called("cuMemHostRegister")
        assert host not in self.pinned
        self.pinned[host] = nbytes

    def unpin(self, host: int) -> None:
        nbytes = self.pinned.pop(host)
        for stream in self.streams.values():
            for copy in stream.pending:
                assert not copy.touches(host, nbytes), "unpinned under a queued copy"

    def close(self) -> None: ...

    def _run(self, handle: int, upto: int) -> None:
        stream = self.streams.get(handle)
        while stream is not None and stream.executed < upto:
            item = stream.queued[stream.executed]
            stream.executed += 1
            if isinstance(item, PeerCopy):
                self._require_access(item.source, item.nbytes)
                self._require_access(item.target, item.nbytes)
                ctypes.memmove(item.target, item.resolve(), item.nbytes)
            elif isinstance(item, Copy):
                self._require_access(item.device, item.nbytes)
                ctypes.memmove(item.target, item.source, item.nbytes)
            else:
                item()

    def _require_access(self, address: int, nbytes: int) -> None:
        base = next(b for b, n in self.reserved.items() if b <= address < b + n)
        first = base + (address - base) // GRANULARITY * GRANULARITY
        for part in range(first, address + nbytes, GRANULARITY):
            assert part in self.allowed, "a copy touches memory that is not mapped"

    def _called(self, call: str) -> None:
        self.calls[call] += 1
        left = self._failing.get(call, 0)
        if left == 1:
            del self._failing[call]
            raise CudaError(call, 2, "CUDA_ERROR_OUT_OF_MEMORY")
        if left:
            self._failing[call] = left - 1
