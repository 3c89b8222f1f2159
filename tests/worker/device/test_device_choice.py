from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aegaeon_worker.device import choice
from aegaeon_worker.device.choice import DeviceRequest, default_dtype, open_device
from aegaeon_worker.device.errors import DeviceMemoryError, DeviceUnavailable
from tests.worker.device.fake_cuda import FakeCuda

MIB = 1 << 20


@pytest.fixture
def request_(tmp_path: Path) -> DeviceRequest:
    return DeviceRequest(
        device="auto",
        worker_index=0,
        cpu_nbytes=64 * MIB,
        memory_utilization=0.5,
        chunk_nbytes=0,
        lock_dir=tmp_path,
    )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A machine with one GPU, 1,000 MiB of it free."""
    driver = FakeCuda()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(driver, "free_nbytes", lambda: 1000 * MIB)
    monkeypatch.setattr(choice, "BoundDriver", lambda index: driver)
    return driver


def test_a_machine_without_gpus_computes_on_its_cpu(
    request_: DeviceRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with ExitStack() as stack:
        device = open_device(request_, stack)
        assert device.torch_device.type == "cpu"
        assert device.pool.nbytes == 64 * MIB
        assert default_dtype(device) == torch.float32
    with ExitStack() as stack, pytest.raises(DeviceUnavailable, match="--device cpu"):
        open_device(replace(request_, device="cuda:0"), stack)


def test_a_gpu_gives_its_share_of_free_memory_and_gets_it_back(
    request_: DeviceRequest, gpu: FakeCuda
) -> None:
    with ExitStack() as stack:
        device = open_device(request_, stack)
        assert device.pool.chunk_nbytes == 64 * MIB
        assert device.pool.num_chunks == 7  # 7 x 64 MiB are less than half of 1,000 MiB
        with ExitStack() as other, pytest.raises(DeviceUnavailable, match="another worker"):
            open_device(request_, other)
    assert gpu.chunks == {}
    assert list(request_.lock_dir.iterdir()) == []


def test_a_share_below_one_chunk_is_refused(request_: DeviceRequest, gpu: FakeCuda) -> None:
    with ExitStack() as stack, pytest.raises(DeviceMemoryError, match="5% of 1048576000 free"):
        open_device(replace(request_, memory_utilization=0.05), stack)
    assert list(request_.lock_dir.iterdir()) == []


def test_more_workers_than_gpus_are_refused(request_: DeviceRequest, gpu: FakeCuda) -> None:
    with ExitStack() as stack, pytest.raises(DeviceUnavailable, match="has 1 CUDA devices"):
        open_device(replace(request_, worker_index=1), stack)
