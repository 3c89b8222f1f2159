"""Pinning of host memory in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from aegaeon_worker.device.cuda_calls import CudaDriver
from aegaeon_worker.device.errors import CudaError

_logger = logging.getLogger(__name__)

#: The driver lets nobody else in while it pins; 1.4 ms is what a piece took on an H200's host.
PIECE_NBYTES = 32 << 20
#: After each piece the pinner rests for so many times as long, so that kernels get launched.
_REST = 2


class _Mapping:
    """One mapping and how much of it is pinned; ``pinned_nbytes`` is the pinner's alone."""

    def __init__(self, address: int, nbytes: int, *, read_only: bool) -> None:
        self.address = address
        self.nbytes = nbytes
        self.read_only = read_only
        self.pinned_nbytes = 0
        self.leaving = threading.Event()
        self.done: Future[None]

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """``[start, end)`` of the mapping, cut where pieces meet, as offset and size."""
        while start < end:
            stop = min(end, (start // PIECE_NBYTES + 1) * PIECE_NBYTES)
            yield start, stop - start
            start = stop


class HostPins:
    """Which mappings of this process are pinned. Callable from any thread."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._mutex = threading.Lock()
        # Two, so that a model deployed at the start does not wait for gigabytes of KV slabs.
        self._threads = ThreadPoolExecutor(2, "pinner", initializer=driver.enter)
        self._mappings: dict[int, _Mapping] = {}

    @property
    def nbytes(self) -> int:
        """Bytes pinned at this moment."""
        with self._mutex:
            return sum(mapping.pinned_nbytes for mapping in self._mappings.values())

    def pin(self, address: int, nbytes: int, *, read_only: bool) -> None:
        """See ``HostPinning.pin_host``."""
        mapping = _Mapping(address, nbytes, read_only=read_only)
        with self._mutex:
            if address in self._mappings:
                raise ValueError(f"the mapping at {address:#x} is pinned already")
            self._mappings[address] = mapping
            mapping.done = self._threads.submit(self._pin, mapping)

    def pinned(self, address: int) -> bool:
        """See ``HostPinning.host_pinned``."""
        mapping = self._mappings.get(address)
        return mapping is not None and mapping.pinned_nbytes == mapping.nbytes

    def split(self, address: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """Cut bytes of the host into parts, as address and size, that one copy each may touch."""
        with self._mutex:
            mappings = list(self._mappings.values())
        for mapping in mappings:
            offset = address - mapping.address
            if 0 <= offset < mapping.nbytes:
                for start, size in mapping.pieces(offset, offset + nbytes):
                    yield mapping.address + start, size
                return
        yield address, nbytes

    def unpin(self, address: int) -> None:
        """See ``HostPinning.unpin_host``; unknown mappings are ignored."""
        with self._mutex:
            mapping = self._mappings.pop(address, None)
        if mapping is None:
            return
        mapping.leaving.set()
        if not mapping.done.cancel():
            mapping.done.result()
        self._driver.enter()
        for offset, _ in mapping.pieces(0, mapping.pinned_nbytes):
            self._driver.unpin(address + offset)

    def wait(self) -> int:
        """Wait until nothing is being pinned; return the bytes pinned."""
        with self._mutex:
            mappings = list(self._mappings.values())
        for mapping in mappings:
            mapping.done.result()
        return self.nbytes

    def close(self) -> None:
        """Unpin everything."""
        for address in list(self._mappings):
            self.unpin(address)
        self._threads.shutdown()

    def _pin(self, mapping: _Mapping) -> None:
        """On the pinner's thread; what cannot be pinned stays as it is, and slower to copy."""
        if mapping.read_only and not self._driver.read_only_pins:
            _logger.warning("read-only memory cannot be pinned here; copies from it are slower")
            return
        for offset, size in mapping.pieces(0, mapping.nbytes):
            start = time.perf_counter()
            try:
                self._driver.pin(mapping.address + offset, size, mapping.read_only)
            except CudaError as error:
                unpinned = mapping.nbytes - offset
                _logger.warning("%d bytes stay unpinned, copies are slower: %s", unpinned, error)
                return
            mapping.pinned_nbytes = offset + size
            if mapping.leaving.wait(_REST * (time.perf_counter() - start)):
                return
