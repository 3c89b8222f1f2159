"""Addresses of a CUDA device, backed by chunks where mapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from aegaeon_worker.device.chunk_table import ChunkTable
from aegaeon_worker.device.cuda_calls import CudaDriver
from aegaeon_worker.device.errors import CudaError, DeviceMemoryError
from aegaeon_worker.device.host_memory import dense_nbytes
from aegaeon_worker.device.interface import CopyLane
from aegaeon_worker.device.pool import DevicePool


class CudaRange:
    """A ``VirtualRange``; ``handles`` are the driver's, by chunk of the pool."""

    def __init__(
        self,
        driver: CudaDriver,
        pool: DevicePool,
        handles: list[int],
        name: str,
        lane: CopyLane,
        num_positions: int,
        forget: Callable[[CudaRange], bool],
    ) -> None:
        self.name = name
        self.lane = lane
        self.nbytes = num_positions * pool.chunk_nbytes
        self._driver = driver
        self._handles = handles
        self._chunk_nbytes = pool.chunk_nbytes
        self._table = ChunkTable(pool, name, num_positions)
        self._forget = forget
        self.base = driver.reserve(self.nbytes)
        # torch asks nothing about the address, so that it need not be mapped yet.
        storage = torch._C._construct_storage_from_data_pointer(
            self.base, driver.torch_device, self.nbytes
        )
        empty = torch.empty(0, dtype=torch.uint8, device=driver.torch_device)
        self._bytes = empty.set_(storage, 0, (self.nbytes,), (1,))

    @property
    def mapped(self) -> frozenset[int]:
        """Positions that are backed by a chunk."""
        return self._table.positions

    def chunk(self, position: int) -> int:
        """The chunk that backs a position; ``KeyError`` if none does."""
        return self._table.chunk(position)

    def map(self, positions: Iterable[int]) -> None:
        """Back ``positions`` with chunks from the pool: all of them, or an error and none."""
        taken = self._table.take(positions)
        mapped: list[int] = []
        try:
            for position, chunk in taken.items():
                self._driver.map(self._address(position), self._chunk_nbytes, self._handles[chunk])
                mapped.append(position)
            for first, count in _runs(taken):
                self._driver.allow(self._address(first), count * self._chunk_nbytes)
        except CudaError as error:
            self._withdraw(mapped)
            self._table.give_back(taken)
            raise DeviceMemoryError(f"cannot map {len(taken)} chunks of {self.name}") from error

    def unmap(self, positions: Iterable[int]) -> None:
        """Give the chunks of ``positions`` back to the pool; ``ValueError`` if one has none.

        Nothing that touches them may be queued on the device any more.
        """
        leaving = self._table.require(positions)
        self._withdraw(leaving)
        self._table.give_back(leaving)

    def tensor(self, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """A dense tensor over the range, ``offset`` in bytes; making it touches no memory."""
        nbytes = dense_nbytes(dtype, shape)
        self.require_bytes(offset, nbytes)
        return self._bytes[offset : offset + nbytes].view(dtype).view(shape)

    def require_bytes(self, offset: int, nbytes: int) -> None:
        """``ValueError`` unless ``nbytes`` from ``offset`` on lie in the range."""
        self._table.require_bytes(offset, nbytes)

    def release(self) -> None:
        """Unmap everything and end the reservation; its tensors must never be touched again."""
        if self._forget(self):
            self.unmap(self.mapped)
            self._driver.free(self.base, self.nbytes)

    def _address(self, position: int) -> int:
        return self.base + position * self._chunk_nbytes

    def _withdraw(self, positions: list[int]) -> None:
        """Unmap; what the driver refuses to unmap stays in the books as this range's."""
        for position in positions:
            self._driver.unmap(self._address(position), self._chunk_nbytes)


def _runs(positions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Maximal runs of consecutive positions, as first position and count."""
    ordered = sorted(positions)
    start = 0
    for index in range(1, len(ordered) + 1):
        if index == len(ordered) or ordered[index] != ordered[index - 1] + 1:
            yield ordered[start], index - start
            start = index
