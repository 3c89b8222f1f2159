"""Copies stage by stage, and compute behind them, on a device that copies as late as it may."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from aegaeon_worker.device.cuda import CudaDevice
from aegaeon_worker.device.errors import CudaError, OutOfChunks
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.layout import TensorSpec, WeightLayout
from aegaeon_worker.weights.resident import ResidentWeights
from tests.worker.device.fake_cuda import FakeCuda
from tests.worker.device.makers import CHUNK

STAGES = ("embeddings", "layer.0", "layer.1", "head")
#: A stage is a chunk.
LAYOUT = WeightLayout.place(
    (name, [TensorSpec(name, torch.float32, (CHUNK // 4,))]) for name in STAGES
)


@pytest.fixture
def driver() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def device(driver: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaDevice]:
    monkeypatch.setattr(CudaDevice, "copy_nbytes", 1)
    device = CudaDevice(driver, 5, CHUNK)
    yield device
    device.close()


@pytest.fixture
def weights(device: CudaDevice, tmp_path: Path) -> Iterator[ResidentWeights]:
    cache = WeightCache(tmp_path, 64 << 20, device)

    def fill(views: Mapping[str, torch.Tensor]) -> None:
        for number, name in enumerate(STAGES):
            views[name].fill_(number + 1.0)

    weights = ResidentWeights(device, "a", LAYOUT, lambda: cache.acquire("a", "a", LAYOUT, fill))
    yield weights
    weights.close()
    cache.close()


def arrived(weights: ResidentWeights) -> list[bool]:
    """Per stage, whether its bytes are there for whoever looks without waiting."""
    tensors = weights.tensors()
    return [bool(tensors[name][0] == number + 1.0) for number, name in enumerate(STAGES)]


def test_a_stage_is_computed_as_soon_as_its_own_bytes_are_there(weights: ResidentWeights) -> None:
    weights.pin()
    weights.load()
    assert arrived(weights) == [False] * 4
    weights.gate.wait("embeddings")
    assert arrived(weights) == [True, False, False, False]
    weights.gate.wait("layer.1")
    assert arrived(weights) == [True, True, True, False]
    weights.gate.wait("embeddings")
    assert not weights.gate.open
    weights.gate.wait_all()
    assert weights.gate.open
    assert arrived(weights) == [True] * 4


def test_a_load_that_fails_midway_gives_everything_back(
    weights: ResidentWeights, device: CudaDevice, driver: FakeCuda
) -> None:
    weights.pin()
    driver.fail("cuMemcpyHtoDAsync", 3)
    with pytest.raises(CudaError):
        weights.load()
    assert not weights.mapped
    assert not weights.resident
    assert weights.gate.open
    assert device.pool.owned() == {}
    weights.load()
    weights.gate.wait_all()
    assert arrived(weights) == [True] * 4


def test_loading_without_room_copies_nothing(
    weights: ResidentWeights, device: CudaDevice, driver: FakeCuda
) -> None:
    from aegaeon_worker.device.interface import CopyLane

    device.reserve("other", 2 * CHUNK, CopyLane.KV).map([0, 1])
    for load in (weights.load, lambda: weights.load_piece(1)):
        with pytest.raises(OutOfChunks):
            load()
    assert driver.calls["cuMemcpyHtoDAsync"] == 0
    assert device.pool.owned() == {"other": 2}


def test_pieces_keep_two_copies_under_way_and_no_more(
    weights: ResidentWeights, driver: FakeCuda
) -> None:
    weights.pin()
    assert [weights.load_piece(1) for _ in range(3)] == [CHUNK, CHUNK, 0]
    assert not weights.resident
    driver.run_all()
    assert [weights.load_piece(1) for _ in range(3)] == [CHUNK, CHUNK, 0]
    assert weights.resident
    driver.run_all()
    assert weights.load_piece(1) == 0
    assert weights.load() == 0
    assert arrived(weights) == [True] * 4


def test_a_load_completes_what_pieces_began(weights: ResidentWeights) -> None:
    weights.pin()
    weights.load_piece(CHUNK + 1)
    assert weights.load() == 2 * CHUNK
    weights.gate.wait_all()
    assert arrived(weights) == [True] * 4


def test_pieces_can_be_given_up_and_begun_anew(
    weights: ResidentWeights, device: CudaDevice
) -> None:
    weights.load_piece(1)
    assert weights.unload() == 4
    assert device.pool.owned() == {}
    assert weights.load() == LAYOUT.nbytes
    weights.gate.wait_all()
    assert arrived(weights) == [True] * 4
