"""A CUDA device: physical memory in chunks, mapped into fixed addresses, copied by own streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from weakref import WeakSet

import torch

from aegaeon_worker.device.cuda_calls import CudaDriver
from aegaeon_worker.device.cuda_pins import HostPins
from aegaeon_worker.device.cuda_range import CudaRange
from aegaeon_worker.device.cuda_sharing import CudaSharing
from aegaeon_worker.device.errors import CudaError, DeviceMemoryError
from aegaeon_worker.device.host_memory import byte_view
from aegaeon_worker.device.interface import CopyLane, VirtualRange
from aegaeon_worker.device.pool import DevicePool

DEFAULT_CHUNK_NBYTES = 64 << 20
#: From here on a copy runs at the speed of the link, on every link measured.
_COPY_NBYTES = 32 << 20


class CudaMark:
    """An event behind copies to the device."""

    def __init__(self, driver: CudaDriver, stream: int) -> None:
        self._driver = driver
        self._event: int | None = driver.event()
        driver.record(self._event, stream)

    @property
    def done(self) -> bool:
        """Whether every copy before the mark is complete; never blocks."""
        return self._event is None or self._driver.done(self._event)

    def wait(self) -> None:
        """Order all compute issued from now on after the copies issued before this mark."""
        self.hold(self._driver.compute_stream())

    def hold(self, stream: int) -> None:
        """Order what is queued in ``stream`` from now on after the mark."""
        if self._event is not None:
            self._driver.wait(stream, self._event)

    def destroy(self) -> None:
        """Give the event back; the copies must be done."""
        if self._event is not None:
            self._driver.destroy_event(self._event)
            self._event = None

    def __del__(self) -> None:
        # Destroying an event that has not happened yet is allowed: the driver waits for it.
        self.destroy()


class CudaTail:
    """Timers at the ends of the copy streams that have something left."""

    def __init__(self, driver: CudaDriver, idle: int, lanes: Mapping[CopyLane, list[int]]) -> None:
        """``idle`` is a stream with nothing in it; ``lanes`` are those of each lane."""
        self._driver = driver
        self._now = self._timer(idle)
        # A timer takes a moment to happen in an empty stream too, and would count as a copy.
        self._ends = {
            lane: [self._timer(s) for s in streams if not driver.idle(s)]
            for lane, streams in lanes.items()
        }

    @property
    def done(self) -> bool:
        """See ``CopyTail``."""
        return all(self._driver.done(end) for ends in self._ends.values() for end in ends)

    def remaining_ns(self, lane: CopyLane) -> int:
        """See ``CopyTail``."""
        times = [self._driver.elapsed_ns(self._now, end) for end in self._ends[lane]]
        return max([0, *times])

    def __del__(self) -> None:
        for event in (self._now, *(end for ends in self._ends.values() for end in ends)):
            self._driver.destroy_event(event)

    def _timer(self, stream: int) -> int:
        timer = self._driver.timer()
        self._driver.record(timer, stream)
        return timer


class CudaDevice:
    """A ``Device`` over the CUDA driver.

    The chunks are created once and never given back before ``close``; whatever the driver says of
    free memory afterwards is not looked at, because other processes change it.
    """

    copy_nbytes = _COPY_NBYTES

    def __init__(self, driver: CudaDriver, num_chunks: int, chunk_nbytes: int) -> None:
        """Create the chunks: all of them, or an error and none."""
        if chunk_nbytes < 1 or chunk_nbytes % driver.granularity:
            raise ValueError(
                f"chunks must be a multiple of {driver.granularity} bytes, not {chunk_nbytes}"
            )
        self.pool = DevicePool(num_chunks, chunk_nbytes)
        self.name = driver.name
        self.torch_device = driver.torch_device
        self._driver = driver
        self._ranges: dict[str, CudaRange] = {}
        self._marks: WeakSet[CudaMark] = WeakSet()
        self._chunks: list[int] = []
        self._closed = False
        try:
            for _ in range(num_chunks):
                self._chunks.append(driver.create_chunk(chunk_nbytes))
        except CudaError as error:
            self._release(self._chunks)
            raise DeviceMemoryError(
                f"{self.name}: only {len(self._chunks)} of {num_chunks} chunks of {chunk_nbytes} "
                "bytes could be created; lower the worker's memory utilization"
            ) from error
        self._in = {lane: driver.stream() for lane in CopyLane}
        self._out = driver.stream()
        self._idle = driver.stream()
        self.pins = HostPins(driver)
        self.sharing = CudaSharing(driver, self)

    def reserve(self, name: str, nbytes: int, lane: CopyLane) -> CudaRange:
        """Reserve addresses for at least ``nbytes`` bytes; names are unique while reserved."""
        if name in self._ranges:
            raise ValueError(f"a range named {name} is reserved already")
        # Whoever reserves goes on to copy and to compute, on this very thread.
        self._driver.enter()
        positions = max(1, self.pool.chunks_for(nbytes))
        reserved = CudaRange(
            self._driver, self.pool, self._chunks, name, lane, positions, self._forget
        )
        self._ranges[name] = reserved
        return reserved

    def fence_copies(self) -> None:
        """Start KV copies queued from now on after all compute and KV copies queued so far."""
        self.hold(self._in[CopyLane.KV], self._out)

    def hold(self, *streams: int) -> None:
        """Start what is queued in streams from now on after all compute and KV copies so far."""
        before = (self._driver.compute_stream(), self._in[CopyLane.KV], self._out)
        for mark in [CudaMark(self._driver, stream) for stream in before]:
            for stream in streams:
                mark.hold(stream)

    def fence_compute(self) -> None:
        """Start compute queued from now on after all KV copies queued so far, in and out."""
        for stream in (self._in[CopyLane.KV], self._out):
            CudaMark(self._driver, stream).wait()

    def copy_in(self, target: VirtualRange, offset: int, source: torch.Tensor) -> None:
        """Queue a copy of a contiguous host tensor's bytes to ``offset`` of a mapped range."""
        data = byte_view(source)
        own = self._ranges[target.name]
        own.require_bytes(offset, data.nbytes)
        shift = own.base + offset - data.data_ptr()
        for host, nbytes in self.pins.split(data.data_ptr(), data.nbytes):
            self._driver.copy_in(host + shift, host, nbytes, self._in[own.lane])

    def copy_out(self, source: VirtualRange, offset: int, target: torch.Tensor) -> None:
        """Queue a copy from ``offset`` of a mapped range that fills a contiguous host tensor."""
        data = byte_view(target)
        own = self._ranges[source.name]
        own.require_bytes(offset, data.nbytes)
        shift = own.base + offset - data.data_ptr()
        for host, nbytes in self.pins.split(data.data_ptr(), data.nbytes):
            self._driver.copy_out(host, host + shift, nbytes, self._out)

    def mark(self, lane: CopyLane) -> CudaMark:
        """A mark after every copy of the lane that was queued so far."""
        stream = self._in[lane]
        if lane is CopyLane.KV:  # which has copies in both directions
            CudaMark(self._driver, stream).hold(self._out)
            stream = self._out
        return self.mark_stream(stream)

    def mark_stream(self, stream: int) -> CudaMark:
        """A mark behind all that a stream was given so far."""
        mark = CudaMark(self._driver, stream)
        self._marks.add(mark)
        return mark

    def handle(self, chunk: int) -> int:
        """The driver's name for a chunk of the pool."""
        return self._chunks[chunk]

    def address_of(self, reserved: VirtualRange) -> int:
        """Where an open range begins."""
        return self._ranges[reserved.name].base

    def tail(self) -> CudaTail:
        """What is left to be copied at this moment."""
        lanes = {lane: [stream] for lane, stream in self._in.items()}
        lanes[CopyLane.KV].append(self._out)
        return CudaTail(self._driver, self._idle, lanes)

    def synchronize(self, lane: CopyLane) -> None:
        """Block until a lane's copies, and all compute queued by this thread, are done."""
        for stream in (self._driver.compute_stream(), self._in[lane], self._out):
            self._driver.synchronize(stream)

    def pin_host(self, address: int, nbytes: int, *, read_only: bool) -> None:
        """Begin to pin a mapping in the background."""
        self.pins.pin(address, nbytes, read_only=read_only)

    def host_pinned(self, address: int) -> bool:
        """Whether all of the mapping at ``address`` is pinned, so that its memory exists."""
        return self.pins.pinned(address)

    def unpin_host(self, address: int) -> None:
        """End what ``pin_host`` began, before the mapping goes."""
        self.pins.unpin(address)

    def close(self) -> None:
        """Release every range and all physical memory; closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._driver.enter()
        for lane in CopyLane:
            self.synchronize(lane)
        self.pins.close()
        self.sharing.close()
        for reserved in list(self._ranges.values()):
            reserved.release()
        self._release(self._chunks)
        for mark in list(self._marks):
            mark.destroy()
        for stream in (*self._in.values(), self._out, self._idle):
            self._driver.destroy_stream(stream)

    def _forget(self, leaving: CudaRange) -> bool:
        """Take a range off the list of open ones; false if it was released before."""
        return self._ranges.pop(leaving.name, None) is not None

    def _release(self, chunks: Iterable[int]) -> None:
        for chunk in chunks:
            self._driver.release_chunk(chunk)
