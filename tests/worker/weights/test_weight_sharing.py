from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.errors import (
    WeightsInUse,
)
from tests.worker.weights.cache_harness import (
    FILE_NBYTES,
    LAYOUT,
    fill_with,
    names,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[WeightCache]:
    cache = WeightCache(tmp_path, 10 * FILE_NBYTES)
    yield cache
    cache.close()


def run_python(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )


USER = """
import sys, time
from pathlib import Path
from aegaeon_worker.weights.cache import WeightCache
sys.path.insert(0, sys.argv[3])
from tests.worker.weights.cache_harness import FILE_NBYTES, LAYOUT, fill_with
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
    user = run_python(USER, str(directory), stage, str(ROOT))
    assert user.stdout is not None
    assert user.stdout.readline().strip() == stage
    return user


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    assert process.stdout is not None
    process.stdout.close()


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


def test_making_room_spares_a_file_that_is_being_packed(tmp_path: Path) -> None:
    packer = start_user(tmp_path, "packing")
    cache = WeightCache(tmp_path, 10 * FILE_NBYTES)
    cache.acquire("n", "f", LAYOUT, fill_with(1.0)).release()
    assert len(list(tmp_path.glob("m-*.partial"))) == 1
    kill(packer)
    cache.acquire("o", "f", LAYOUT, fill_with(1.0)).release()
    assert list(tmp_path.glob("*.partial")) == []
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
from tests.worker.weights.cache_harness import FILE_NBYTES, LAYOUT, fill_with
from aegaeon_worker.weights.cache import WeightCache
file = WeightCache(Path(sys.argv[1]), 10 * FILE_NBYTES).acquire("m", "f", LAYOUT, fill_with(1.0))
print(file.tensors()["b"].item(), flush=True)
file.tensors()["b"].fill_(2.0)
print("written", flush=True)
"""
    writer = run_python(code, str(tmp_path), str(ROOT))
    output, _ = writer.communicate(timeout=60)
    assert output == "1.0\n"
    assert writer.returncode == -signal.SIGSEGV
