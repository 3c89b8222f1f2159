from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from aegaeon.errors import EngineError
from aegaeon_worker.weights import space
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.errors import (
    SharedMemoryFull,
    WeightCacheFull,
    WeightsInUse,
)
from aegaeon_worker.weights.layout import TensorSpec, WeightLayout

PAGE = os.sysconf("SC_PAGESIZE")
LAYOUT = WeightLayout.place(
    [
        ("embed", [TensorSpec("wte", torch.float32, (16, 16))]),
        (
            "layer 0",
            [TensorSpec("w", torch.bfloat16, (3, 7)), TensorSpec("b", torch.float32, (1,))],
        ),
    ]
)
#: What one file of LAYOUT occupies: a page of header and a page of data.
FILE_NBYTES = 2 * PAGE

Fill = Callable[[Mapping[str, torch.Tensor]], None]


def fill_with(value: float, calls: list[float] | None = None) -> Fill:
    def fill(views: Mapping[str, torch.Tensor]) -> None:
        if calls is not None:
            calls.append(value)
        for view in views.values():
            view.fill_(value)

    return fill


def never(views: Mapping[str, torch.Tensor]) -> None:
    raise AssertionError(f"packed again: {list(views)}")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[WeightCache]:
    cache = WeightCache(tmp_path, 10 * FILE_NBYTES)
    yield cache
    cache.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def run_python(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )


USER = """
import sys, time
from pathlib import Path
from aegaeon_worker.weights.cache import WeightCache
sys.path.insert(0, sys.argv[3])
from test_weight_cache import FILE_NBYTES, LAYOUT, fill_with
cache = WeightCache(Path(sys.argv[1]), 10 * FILE_NBYTES)
def fill(views):
    fill_with(7.0)(views)
    if sys.argv[2] == "packing":
        print("packing", flush=True)
        time.sleep(60)
file = cache.acquire("m", "f", LAYOUT, fill)
print("using", flush=True)
time.sleep(60)
"""


def start_user(directory: Path, stage: str) -> subprocess.Popen[str]:
    user = run_python(USER, str(directory), stage, str(Path(__file__).parent))
    assert user.stdout is not None
    assert user.stdout.readline().strip() == stage
    return user


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    assert process.stdout is not None
    process.stdout.close()


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


def test_two_threads_pack_one_model_once(cache: WeightCache) -> None:
    calls: list[float] = []
    held: list[object] = []

    def acquire() -> None:
        held.append(cache.acquire("m", "f", LAYOUT, fill_with(1.0, calls)))

    threads = [threading.Thread(target=acquire) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(held) == 4
    assert calls == [1.0]


def test_a_killed_packer_is_replaced(tmp_path: Path) -> None:
    packer = start_user(tmp_path, "packing")
    waited = threading.Event()
    cache = WeightCache(tmp_path, 10 * FILE_NBYTES)

    def acquire() -> None:
        with cache.acquire("m", "f", LAYOUT, fill_with(9.0)) as file:
            assert file.tensors()["b"].item() == 9.0
        waited.set()

    waiter = threading.Thread(target=acquire)
    waiter.start()
    assert not waited.wait(0.3)
    kill(packer)
    assert waited.wait(30)
    waiter.join(timeout=30)
    assert [name for name in names(tmp_path) if not name.endswith(".weights")] == []
    cache.close()


def test_a_killed_user_no_longer_holds_its_file(tmp_path: Path) -> None:
    user = start_user(tmp_path, "using")
    cache = WeightCache(tmp_path, 10 * FILE_NBYTES)
    assert [file.in_use for file in cache.files()] == [True]
    with pytest.raises(WeightsInUse):
        cache.remove("m")
    kill(user)
    assert cache.remove("m") == FILE_NBYTES
    cache.close()


def test_a_write_to_packed_weights_faults_instead_of_corrupting_them(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_weight_cache import *
file = WeightCache(Path(sys.argv[1]), 10 * FILE_NBYTES).acquire("m", "f", LAYOUT, fill_with(1.0))
print(file.tensors()["b"].item(), flush=True)
file.tensors()["b"].fill_(2.0)
print("written", flush=True)
"""
    writer = run_python(code, str(tmp_path), str(Path(__file__).parent))
    output, _ = writer.communicate(timeout=60)
    assert output == "1.0\n"
    assert writer.returncode == -signal.SIGSEGV


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
