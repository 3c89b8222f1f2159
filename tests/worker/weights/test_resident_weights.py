from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from aegaeon_worker.device.cpu import CpuDevice
from aegaeon_worker.device.errors import OutOfChunks
from aegaeon_worker.device.interface import VirtualRange
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.errors import WeightsInUse, WeightsNotResident
from aegaeon_worker.weights.layout import TensorSpec, WeightLayout
from aegaeon_worker.weights.resident import ResidentWeights

CHUNK = 2 << 20
LAYOUT = WeightLayout.place(
    [
        ("embed", [TensorSpec("wte", torch.float32, (1000, 300))]),
        ("layer 0", [TensorSpec("w", torch.bfloat16, (777, 1001))]),
        ("final", [TensorSpec("norm", torch.float32, (7,)), TensorSpec("inv", torch.int64, (3,))]),
    ]
)
NUM_CHUNKS = 2


def expected(model: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(model.encode()))
    return {
        slot.spec.name: torch.randint(-9, 9, slot.spec.shape, generator=generator).to(
            slot.spec.dtype
        )
        for slot in LAYOUT.slots()
    }


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    device = CpuDevice(3 * CHUNK, CHUNK)
    yield device
    device.close()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[WeightCache]:
    cache = WeightCache(tmp_path, 16 << 20)
    yield cache
    cache.close()


def make(device: CpuDevice, cache: WeightCache, model: str) -> ResidentWeights:
    def fill(views: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in expected(model).items():
            views[name].copy_(tensor)

    return ResidentWeights(device, model, LAYOUT, lambda: cache.acquire(model, model, LAYOUT, fill))


def assert_restored(weights: ResidentWeights, views: Mapping[str, torch.Tensor]) -> None:
    weights.require_resident()
    for name, tensor in expected(weights.name).items():
        assert torch.equal(views[name], tensor), name


def test_switching_there_and_back_restores_every_byte_at_the_same_addresses(
    device: CpuDevice, cache: WeightCache
) -> None:
    a, b = make(device, cache, "a"), make(device, cache, "b")
    a_views, b_views = a.tensors(), b.tensors()
    addresses = [view.data_ptr() for view in a.tensors().values()]
    for _ in range(3):
        a.load()
        assert_restored(a, a_views)
        assert a.unload() == NUM_CHUNKS
        b.load()
        assert_restored(b, b_views)
        assert b.unload() == NUM_CHUNKS
    a.load()
    assert_restored(a, a_views)
    assert [view.data_ptr() for view in a.tensors().values()] == addresses


def test_loading_and_unloading_twice_changes_nothing(device: CpuDevice, cache: WeightCache) -> None:
    weights = make(device, cache, "a")
    assert weights.load() == LAYOUT.nbytes
    assert weights.load() == 0
    assert device.pool.owned() == {"weights of a": NUM_CHUNKS}
    assert weights.unload() == NUM_CHUNKS
    assert weights.unload() == 0
    assert device.pool.owned() == {}


def test_weights_not_loaded_are_refused(device: CpuDevice, cache: WeightCache) -> None:
    weights = make(device, cache, "a")
    for action in (lambda: None, weights.load, weights.unload):
        action()
        if not weights.resident:
            with pytest.raises(WeightsNotResident, match="weights of a are not on the device"):
                weights.require_resident()


def test_partly_loaded_weights_are_refused_and_given_back(
    device: CpuDevice, cache: WeightCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = make(device, cache, "a")
    monkeypatch.setattr(device, "copy_nbytes", 1)
    real, copies = device.copy_in, []

    def second_fails(target: VirtualRange, offset: int, source: torch.Tensor) -> None:
        copies.append(offset)
        if len(copies) == 2:
            raise RuntimeError("the link is gone")
        real(target, offset, source)

    monkeypatch.setattr(device, "copy_in", second_fails)
    with pytest.raises(RuntimeError, match="the link is gone"):
        weights.load()
    assert not weights.resident
    assert device.pool.owned() == {}
    assert [file.in_use for file in cache.files()] == [False]
    weights.load()
    assert_restored(weights, weights.tensors())


def test_loading_without_room_takes_nothing(device: CpuDevice, cache: WeightCache) -> None:
    a, b = make(device, cache, "a"), make(device, cache, "b")
    a.load()
    with pytest.raises(OutOfChunks):
        b.load()
    assert device.pool.owned() == {"weights of a": NUM_CHUNKS}
    assert not b.resident
    assert_restored(a, a.tensors())


def test_memory_is_flat_over_many_cycles(device: CpuDevice, cache: WeightCache) -> None:
    for number in range(100):
        weights = make(device, cache, f"model-{number % 2}")
        weights.pin()
        weights.load()
        weights.close()
        device.pool.audit()
        assert device.pool.owned() == {}
    assert cache.used_nbytes <= 16 << 20
    assert len(cache.files()) == 2


def test_a_pinned_model_stays_in_the_cache_and_an_idle_one_may_leave(
    device: CpuDevice, cache: WeightCache
) -> None:
    weights = make(device, cache, "a")
    weights.pin()
    weights.load()
    weights.unload()
    with pytest.raises(WeightsInUse):
        cache.remove("a")
    weights.unpin()
    weights.unpin()
    assert cache.remove("a") > 0
    weights.load()
    assert_restored(weights, weights.tensors())
