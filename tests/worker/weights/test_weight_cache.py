from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from aegaeon.errors import EngineError
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.errors import (
    WeightsInUse,
)
from aegaeon_worker.weights.layout import TensorSpec, WeightLayout
from tests.worker.weights.cache_harness import (
    FILE_NBYTES,
    LAYOUT,
    fill_with,
    names,
    never,
)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[WeightCache]:
    cache = WeightCache(tmp_path, 10 * FILE_NBYTES)
    yield cache
    cache.close()


def test_a_model_is_packed_once_and_holds_every_tensor(cache: WeightCache) -> None:
    calls: list[float] = []
    with cache.acquire("m", "f", LAYOUT, fill_with(2.0, calls)) as file:
        assert {name: view.shape for name, view in file.tensors().items()} == {
            "wte": (16, 16),
            "w": (3, 7),
            "b": (1,),
        }
        assert all(bool((view == 2.0).all()) for view in file.tensors().values())
    with cache.acquire("m", "f", LAYOUT, fill_with(3.0, calls)) as again:
        assert again.tensors()["b"].item() == 2.0
    assert calls == [2.0]
    assert cache.used_nbytes == FILE_NBYTES


def test_a_released_file_cannot_be_read(cache: WeightCache) -> None:
    file = cache.acquire("m", "f", LAYOUT, fill_with(1.0))
    file.release()
    file.release()
    with pytest.raises(EngineError, match="has been released"):
        _ = file.data


def test_files_survive_a_restart(tmp_path: Path) -> None:
    first = WeightCache(tmp_path, 10 * FILE_NBYTES)
    first.acquire("m", "f", LAYOUT, fill_with(4.0)).release()
    first.close()
    second = WeightCache(tmp_path, 10 * FILE_NBYTES)
    with second.acquire("m", "f", LAYOUT, never) as file:
        assert file.tensors()["w"][2, 6].item() == 4.0
    second.close()


def test_new_weights_under_the_same_name_are_packed_anew(cache: WeightCache) -> None:
    cache.acquire("m", "old", LAYOUT, fill_with(1.0)).release()
    with cache.acquire("m", "new", LAYOUT, fill_with(2.0)) as file:
        assert file.tensors()["b"].item() == 2.0
    assert [entry.fingerprint for entry in cache.files()] == ["old", "new"]


def test_another_layout_of_the_same_weights_is_another_file(cache: WeightCache) -> None:
    cache.acquire("m", "f", LAYOUT, fill_with(1.0)).release()
    other = WeightLayout.place([("all", [TensorSpec("wte", torch.float16, (16, 16))])])
    with cache.acquire("m", "f", other, fill_with(5.0)) as file:
        assert file.tensors()["wte"].dtype == torch.float16


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def damage_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(40)
        file.write(b"\xff\xff")


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("harm", [truncate, damage_header, empty])
def test_a_damaged_file_is_rebuilt(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    first = WeightCache(tmp_path, 10 * FILE_NBYTES)
    first.acquire("m", "f", LAYOUT, fill_with(1.0)).release()
    path = first.files()[0].path
    first.close()
    harm(path)
    second = WeightCache(tmp_path, 10 * FILE_NBYTES)
    with second.acquire("m", "f", LAYOUT, fill_with(6.0)) as file:
        assert file.tensors()["b"].item() == 6.0
    second.close()
    assert names(tmp_path) == [path.name]


def test_removing_reports_the_bytes_and_spares_models_in_use(cache: WeightCache) -> None:
    file = cache.acquire("m", "f", LAYOUT, fill_with(1.0))
    cache.acquire("m", "g", LAYOUT, fill_with(1.0)).release()
    with pytest.raises(WeightsInUse, match="the weights of m are in use"):
        cache.remove("m")
    assert len(cache.files()) == 2
    file.release()
    assert cache.remove("m") == 2 * FILE_NBYTES
    assert cache.used_nbytes == 0
    assert cache.remove("m") == 0


def test_a_failing_fill_leaves_nothing_and_can_be_repeated(
    cache: WeightCache, tmp_path: Path
) -> None:
    def broken(views: Mapping[str, torch.Tensor]) -> None:
        views["wte"].fill_(1.0)
        raise OSError("model.safetensors: truncated")

    with pytest.raises(OSError, match=r"model\.safetensors: truncated"):
        cache.acquire("m", "f", LAYOUT, broken)
    assert names(tmp_path) == []
    cache.acquire("m", "f", LAYOUT, fill_with(1.0)).release()
