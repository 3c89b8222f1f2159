"""Pinning of host memory in the background."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from aegaeon_worker.device.cuda_driver import CudaDriver
from aegaeon_worker.device.errors import CudaError

_logger = logging.getLogger(__name__)


class HostPins:
    """Which mappings of this process are pinned. Callable from any thread."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._mutex = threading.Lock()
        # Two, so that a model deployed at the start does not wait for gigabytes of KV slabs.
        self._threads = ThreadPoolExecutor(2, "pinner", initializer=driver.enter)
        self._pins: dict[int, Future[bool]] = {}

    def pin(self, address: int, nbytes: int, *, read_only: bool) -> None:
        """See ``HostPinning.pin_host``."""
        with self._mutex:
            if address in self._pins:
                raise ValueError(f"the mapping at {address:#x} is pinned already")
            self._pins[address] = self._threads.submit(self._pin, address, nbytes, read_only)

    def unpin(self, address: int) -> None:
        """See ``HostPinning.unpin_host``; unknown mappings are ignored."""
        with self._mutex:
            pinned = self._pins.pop(address, None)
        if pinned is not None and not pinned.cancel() and pinned.result():
            self._driver.enter()
            self._driver.unpin(address)

    def wait(self) -> int:
        """Wait until nothing is being pinned; return how many mappings are pinned."""
        with self._mutex:
            pins = list(self._pins.values())
        return sum(pinned.result() for pinned in pins)

    def close(self) -> None:
        """Unpin everything."""
        for address in list(self._pins):
            self.unpin(address)
        self._threads.shutdown()

    def _pin(self, address: int, nbytes: int, read_only: bool) -> bool:
        """On the pinner's thread; false, and slower copies, if it cannot be done."""
        if read_only and not self._driver.read_only_pins:
            _logger.warning("read-only memory cannot be pinned here; copies from it are slower")
            return False
        try:
            self._driver.pin(address, nbytes, read_only)
        except CudaError as error:
            _logger.warning("%d bytes stay unpinned, copies are slower: %s", nbytes, error)
            return False
        return True
