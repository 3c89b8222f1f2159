"""Every kind of device that this machine can make, small."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from aegaeon_worker.device.cpu import CpuDevice
from aegaeon_worker.device.cuda import CudaDevice
from aegaeon_worker.device.cuda_driver import BoundDriver
from aegaeon_worker.device.gpu_lock import GpuLock
from aegaeon_worker.device.sharing import SharingDevice
from tests.worker.device.fake_cuda import FakeCuda

CHUNK = 2 << 20
KINDS = [
    "cpu",
    "fake",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]


@contextmanager
def opened(kind: str, num_chunks: int, *, shared: bool = False) -> Iterator[SharingDevice]:
    """A device of ``num_chunks`` chunks; nothing of it may be left."""
    with ExitStack() as stack:
        device: SharingDevice
        if kind == "cpu":
            device = CpuDevice(num_chunks * CHUNK, CHUNK, shared=shared)
        elif kind == "fake":
            driver = FakeCuda()
            device = CudaDevice(driver, num_chunks, CHUNK)
            stack.callback(_nothing_left, driver)
        else:
            bound = BoundDriver(int(kind.partition(":")[2] or 0))
            stack.callback(bound.close)
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            stack.callback(GpuLock(Path(folder), bound.uuid, bound.name).release)
            device = CudaDevice(bound, num_chunks, CHUNK)
        stack.callback(device.close)
        yield device
    assert device.pool.owned() == {}


def _nothing_left(driver: FakeCuda) -> None:
    left = (
        driver.chunks,
        driver.imported,
        driver.reserved,
        driver.mapped,
        driver.pinned,
        driver.events,
    )
    assert not any(left), left
    assert list(driver.streams) == [0]
