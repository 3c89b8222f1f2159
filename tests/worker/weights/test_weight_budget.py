from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aegaeon_worker.weights import space
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.errors import (
    SharedMemoryFull,
    WeightCacheFull,
)
from aegaeon_worker.weights.layout import TensorSpec, WeightLayout
from tests.worker.weights.cache_harness import (
    FILE_NBYTES,
    LAYOUT,
    PAGE,
    fill_with,
    names,
    never,
)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[WeightCache]:
    cache = WeightCache(tmp_path, 10 * FILE_NBYTES)
    yield cache
    cache.close()


def test_the_least_recently_used_model_leaves_first(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path, 2 * FILE_NBYTES)
    for model in ("a", "b"):
        cache.acquire(model, "f", LAYOUT, fill_with(1.0)).release()
    cache.acquire("a", "f", LAYOUT, never).release()
    cache.acquire("c", "f", LAYOUT, fill_with(1.0)).release()
    assert [file.model for file in cache.files()] == ["a", "c"]
    assert [file.model for file in cache.evictions] == ["b"]
    assert cache.used_nbytes == 2 * FILE_NBYTES
    cache.close()


def test_models_in_use_never_leave_and_the_error_names_them(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path, 2 * FILE_NBYTES)
    held = [cache.acquire(model, "f", LAYOUT, fill_with(1.0)) for model in ("a", "b")]
    with pytest.raises(
        WeightCacheFull,
        match=rf"c need {FILE_NBYTES} bytes.*budget of {2 * FILE_NBYTES} bytes.*"
        rf"in use: a {FILE_NBYTES}, b {FILE_NBYTES}",
    ):
        cache.acquire("c", "f", LAYOUT, never)
    held[0].release()
    cache.acquire("c", "f", LAYOUT, fill_with(1.0)).release()
    assert [file.model for file in cache.files()] == ["b", "c"]
    held[1].release()
    cache.close()


def test_nothing_is_evicted_for_a_model_that_cannot_fit(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path, 2 * FILE_NBYTES)
    cache.acquire("a", "f", LAYOUT, fill_with(1.0)).release()
    large = WeightLayout.place([("all", [TensorSpec("w", torch.uint8, (3 * FILE_NBYTES,))])])
    with pytest.raises(WeightCacheFull, match="in use: none"):
        cache.acquire("large", "f", large, never)
    assert [file.model for file in cache.files()] == ["a"]
    cache.close()


def test_a_busy_cache_serves_more_models_than_it_holds(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path, 2 * FILE_NBYTES)
    for number in range(12):
        value = float(number % 4)
        with cache.acquire(f"m{number % 4}", "f", LAYOUT, fill_with(value)) as file:
            assert all(bool((view == value).all()) for view in file.tensors().values())
        assert cache.used_nbytes <= 2 * FILE_NBYTES
    cache.close()


def test_an_evicted_file_that_is_still_mapped_keeps_no_memory(tmp_path: Path) -> None:
    mine, other = (WeightCache(tmp_path, 2 * FILE_NBYTES) for _ in range(2))
    file = mine.acquire("a", "f", LAYOUT, fill_with(1.0))
    fd = os.open(mine.files()[0].path, os.O_RDONLY)
    file.release()
    other.remove("a")
    assert os.fstat(fd).st_blocks == 0
    os.close(fd)
    with mine.acquire("a", "f", LAYOUT, fill_with(2.0)) as again:
        assert again.tensors()["b"].item() == 2.0
    mine.close()
    other.close()


def test_a_full_file_system_is_an_error_and_leaves_nothing(
    cache: WeightCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, nbytes: int) -> None:
        if offset:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        SharedMemoryFull, match=rf"weights of m needs \d+ bytes in {tmp_path}.*another shared"
    ):
        cache.acquire("m", "f", LAYOUT, never)
    assert names(tmp_path) == []


def test_files_leave_for_lack_of_free_space_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = WeightCache(tmp_path, 10 * FILE_NBYTES)
    cache.acquire("a", "f", LAYOUT, fill_with(1.0)).release()
    monkeypatch.setattr("aegaeon_worker.weights.cache_room.free_nbytes", lambda directory: PAGE)
    cache.acquire("b", "f", LAYOUT, fill_with(1.0)).release()
    assert [file.model for file in cache.files()] == ["b"]
    cache.close()


def test_a_budget_larger_than_the_directory_is_refused_at_start(tmp_path: Path) -> None:
    free = space.free_nbytes(tmp_path)
    budget = free + (1 << 40)
    with pytest.raises(SharedMemoryFull, match=rf"budget needs {budget} bytes in {tmp_path}, but"):
        WeightCache(tmp_path, budget)


SMALL_TMPFS = """
import sys, torch
from pathlib import Path
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.errors import SharedMemoryFull
from aegaeon_worker.weights.layout import TensorSpec, WeightLayout
root = Path(sys.argv[1])
try:
    WeightCache(root, 1 << 30)
except SharedMemoryFull as error:
    print(error)
cache = WeightCache(root, 48 << 20)
(root / "other").write_bytes(bytes(56 << 20))
layout = WeightLayout.place([("all", [TensorSpec("w", torch.uint8, (32 << 20,))])])
try:
    cache.acquire("m", "f", layout, lambda views: views["w"].fill_(1))
except SharedMemoryFull as error:
    print(error)
print(sorted(path.name for path in root.iterdir()))
"""


def test_shared_memory_of_64_mib_is_refused_with_the_needed_size(tmp_path: Path) -> None:
    command = f'mount -t tmpfs -o size=64m none {tmp_path} && exec "$0" -c "$1" {tmp_path}'
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", command, sys.executable, SMALL_TMPFS],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    budget, model, listing = done.stdout.splitlines()
    assert f"needs {1 << 30} bytes in {tmp_path}, but only {64 << 20} bytes" in budget
    assert "choose another shared-memory directory" in budget
    assert f"the weights of m needs {(32 << 20) + PAGE} bytes" in model
    assert listing == "['other']"
