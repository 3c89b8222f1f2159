"""The CUDA device's own logic, over a driver that fails on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from aegaeon_worker.device import libc
from aegaeon_worker.device.cuda import CudaDevice
from aegaeon_worker.device.cuda_pins import PIECE_NBYTES
from aegaeon_worker.device.errors import CudaError, DeviceMemoryError
from aegaeon_worker.device.host_memory import tensor_at
from aegaeon_worker.device.interface import CopyLane
from tests.worker.device.fake_cuda import FakeCuda
from tests.worker.device.makers import CHUNK

LANE = CopyLane.WEIGHTS


@pytest.fixture
def driver() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def device(driver: FakeCuda) -> Iterator[CudaDevice]:
    device = CudaDevice(driver, 5, CHUNK)
    yield device
    device.close()


@pytest.fixture
def host() -> Iterator[torch.Tensor]:
    """A mapping of two pieces and a bit, of which nothing is touched."""
    nbytes = 2 * PIECE_NBYTES + CHUNK
    address = libc.map_private(nbytes)
    libc.allow_access(address, nbytes)
    yield tensor_at(address, torch.uint8, (nbytes,))
    libc.unmap(address, nbytes)


@pytest.mark.parametrize(
    ("call", "nth"),
    [*(("cuMemMap", nth) for nth in (1, 3, 4)), ("cuMemSetAccess", 1), ("cuMemSetAccess", 2)],
)
def test_a_mapping_that_fails_midway_leaves_nothing_mapped(
    device: CudaDevice, driver: FakeCuda, call: str, nth: int
) -> None:
    target = device.reserve("a", 6 * CHUNK, LANE)
    target.map([5])
    driver.fail(call, nth)
    with pytest.raises(DeviceMemoryError, match="cannot map 4 chunks of a") as caught:
        target.map([0, 1, 3, 4])
    cause = caught.value.__cause__
    assert isinstance(cause, CudaError)
    assert (cause.call, cause.code) == (call, 2)
    assert str(cause) == f"{call} failed with CUDA_ERROR_OUT_OF_MEMORY (2)"
    assert target.mapped == {5}
    assert len(driver.mapped) == 1
    assert device.pool.num_free == 4
    device.pool.audit()
    target.map([0, 1, 3, 4])
    assert len(driver.mapped) == 5


def test_chunks_that_cannot_be_unmapped_stay_in_the_books(
    device: CudaDevice, driver: FakeCuda
) -> None:
    target = device.reserve("a", 2 * CHUNK, LANE)
    target.map([0, 1])
    driver.fail("cuMemUnmap", 1)
    with pytest.raises(CudaError, match="cuMemUnmap"):
        target.unmap([0, 1])
    assert device.pool.owned() == {"a": 2}


def test_a_device_that_cannot_get_all_its_chunks_takes_none(driver: FakeCuda) -> None:
    driver.fail("cuMemCreate", 3)
    with pytest.raises(DeviceMemoryError, match="only 2 of 4 chunks"):
        CudaDevice(driver, 4, CHUNK)
    assert driver.chunks == {}


def test_chunks_are_created_once_and_recycled(device: CudaDevice, driver: FakeCuda) -> None:
    target = device.reserve("a", 5 * CHUNK, LANE)
    for _ in range(10):
        target.map(range(5))
        target.unmap(range(5))
    assert driver.calls["cuMemCreate"] == 5


def test_neighbouring_chunks_get_access_in_one_call(device: CudaDevice, driver: FakeCuda) -> None:
    device.reserve("a", 8 * CHUNK, LANE).map([4, 1, 0, 2, 7])
    assert driver.calls["cuMemSetAccess"] == 3


def test_a_chunk_size_that_the_device_cannot_map_is_refused(driver: FakeCuda) -> None:
    with pytest.raises(ValueError, match="multiple of 2097152"):
        CudaDevice(driver, 4, CHUNK + 4096)


def test_what_is_left_to_copy_is_nothing_where_nothing_was_queued(
    device: CudaDevice, driver: FakeCuda, host: torch.Tensor
) -> None:
    target = device.reserve("a", CHUNK, CopyLane.WEIGHTS)
    target.map([0])
    assert device.tail().done
    device.copy_in(target, 0, host[:CHUNK])
    tail = device.tail()
    assert not tail.done
    assert tail.remaining_ns(CopyLane.KV) == 0
    assert not tail.done, "asking for one lane has waited for the other"
    assert tail.remaining_ns(CopyLane.WEIGHTS) > 0
    assert tail.done


def test_host_memory_is_pinned_in_pieces_and_no_copy_crosses_two(
    device: CudaDevice, driver: FakeCuda, host: torch.Tensor
) -> None:
    device.pin_host(host.data_ptr(), host.nbytes, read_only=False)
    assert device.pins.wait() == host.nbytes
    assert device.host_pinned(host.data_ptr())
    assert len(driver.pinned) == 3
    target = device.reserve("a", 2 * CHUNK, LANE)
    target.map([0, 1])
    near = host[PIECE_NBYTES - CHUNK : PIECE_NBYTES + CHUNK]
    near.copy_(torch.arange(2 * CHUNK) % 251)
    device.copy_in(target, 0, near)
    assert driver.calls["cuMemcpyHtoDAsync"] == 2
    device.mark(LANE).wait()
    assert torch.equal(target.tensor(0, torch.uint8, (2 * CHUNK,)), near)
    device.synchronize(LANE)
    device.unpin_host(host.data_ptr())
    device.unpin_host(host.data_ptr())
    assert driver.pinned == {}


def test_memory_that_cannot_be_pinned_is_copied_all_the_same(
    device: CudaDevice, driver: FakeCuda, host: torch.Tensor
) -> None:
    driver.fail("cuMemHostRegister", 2)
    device.pin_host(host.data_ptr(), host.nbytes, read_only=False)
    assert device.pins.wait() == PIECE_NBYTES
    assert not device.host_pinned(host.data_ptr())
    target = device.reserve("a", CHUNK, LANE)
    target.map([0])
    source = host[-CHUNK:]
    source.fill_(9)
    device.copy_in(target, 0, source)
    device.mark(LANE).wait()
    assert target.tensor(0, torch.uint8, (CHUNK,)).unique().tolist() == [9]
    device.synchronize(LANE)
    device.unpin_host(host.data_ptr())
    assert driver.pinned == {}


def test_read_only_memory_stays_unpinned_where_the_device_cannot(
    device: CudaDevice, driver: FakeCuda, host: torch.Tensor
) -> None:
    driver.read_only_pins = False
    device.pin_host(host.data_ptr(), host.nbytes, read_only=True)
    assert device.pins.wait() == 0
    device.unpin_host(host.data_ptr())


def test_unpinning_ends_pinning_that_is_under_way(
    device: CudaDevice,
    driver: FakeCuda,
    host: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    real = driver.pin

    def slow(address: int, nbytes: int, read_only: bool) -> None:
        begun.set()
        assert go_on.wait(10)
        real(address, nbytes, read_only)

    monkeypatch.setattr(driver, "pin", slow)
    device.pin_host(host.data_ptr(), host.nbytes, read_only=False)
    assert begun.wait(10)
    threading.Timer(0.05, go_on.set).start()
    device.unpin_host(host.data_ptr())
    assert driver.pinned == {}
    assert driver.calls["cuMemHostRegister"] == 1
