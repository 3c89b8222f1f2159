"""Memory of CUDA devices that their processes map from each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

from aegaeon_worker.device.cuda_calls import CudaDriver
from aegaeon_worker.device.errors import CudaError, DeviceMemoryError
from aegaeon_worker.device.interface import CopyMark, VirtualRange
from aegaeon_worker.device.sharing import PeerMemory

if TYPE_CHECKING:
    from aegaeon_worker.device.cuda import CudaDevice


class CudaPeer:
    """See ``PeerMemory``: each chunk has its place in one reservation for good."""

    def __init__(
        self,
        driver: CudaDriver,
        num_chunks: int,
        chunk_nbytes: int,
        forget: Callable[[CudaPeer], None],
    ) -> None:
        self._driver = driver
        self._num_chunks = num_chunks
        self._chunk_nbytes = chunk_nbytes
        self._forget = forget
        self._handles: dict[int, int] = {}
        self.base = driver.reserve(num_chunks * chunk_nbytes)

    def missing(self, chunks: Iterable[int]) -> list[int]:
        """See ``PeerMemory``."""
        return [chunk for chunk in chunks if chunk not in self._handles]

    def add(self, chunk: int, fd: int) -> None:
        """See ``PeerMemory``."""
        if not 0 <= chunk < self._num_chunks:
            raise DeviceMemoryError(f"chunk {chunk} is not one of {self._num_chunks}")
        driver, address = self._driver, self.base + chunk * self._chunk_nbytes
        try:
            driver.enter()
            handle = driver.import_chunk(fd)
            try:
                driver.map(address, self._chunk_nbytes, handle)
            except CudaError:
                driver.release_chunk(handle)
                raise
            try:
                driver.allow(address, self._chunk_nbytes)
            except CudaError:
                driver.unmap(address, self._chunk_nbytes)
                driver.release_chunk(handle)
                raise
        except CudaError as error:
            raise DeviceMemoryError(f"cannot map another worker's memory: {error}") from error
        self._handles[chunk] = handle

    def close(self) -> None:
        """See ``PeerMemory``."""
        self._driver.enter()
        while self._handles:
            chunk, handle = self._handles.popitem()
            self._driver.unmap(self.base + chunk * self._chunk_nbytes, self._chunk_nbytes)
            self._driver.release_chunk(handle)
        self._driver.free(self.base, self._num_chunks * self._chunk_nbytes)
        self._forget(self)


class CudaSharing:
    """See ``DeviceSharing``; pulls have a stream of their own."""

    def __init__(self, driver: CudaDriver, device: CudaDevice) -> None:
        self._driver = driver
        self._device = device
        self._stream = driver.stream()
        self._peers: set[CudaPeer] = set()
        self.name = driver.uuid
        self.readable = driver.readable()

    @property
    def obstacle(self) -> str:
        """See ``DeviceSharing``."""
        return "" if self._driver.shareable else f"{self._driver.name} exports no file descriptors"

    def prepare(self) -> None:
        """See ``DeviceSharing``: compile the kernel."""
        self._driver.enter()
        self._driver.gather(torch.zeros((1, 3), dtype=torch.int64), self._stream)
        self.synchronize()

    def export(self, chunk: int) -> int:
        """See ``DeviceSharing``."""
        return self._driver.export_chunk(self._device.handle(chunk))

    def open_peer(self, num_chunks: int, chunk_nbytes: int) -> CudaPeer:
        """See ``DeviceSharing``."""
        peer = CudaPeer(self._driver, num_chunks, chunk_nbytes, self._peers.discard)
        self._peers.add(peer)
        return peer

    def pull(self, target: VirtualRange, source: PeerMemory, pieces: torch.Tensor) -> CopyMark:
        """See ``DeviceSharing``."""
        assert isinstance(source, CudaPeer)
        bases = torch.tensor([source.base, self._device.address_of(target), 0])
        self._device.hold(self._stream)
        self._driver.gather(pieces + bases, self._stream)
        return self._device.mark_stream(self._stream)

    def synchronize(self) -> None:
        """See ``DeviceSharing``."""
        self._driver.synchronize(self._stream)

    def close(self) -> None:
        """Give up what other processes lent."""
        self.synchronize()
        for peer in list(self._peers):
            peer.close()
        self._driver.destroy_stream(self._stream)
