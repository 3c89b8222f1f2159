from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aegaeon.errors import ConfigError
from aegaeon_worker.weights.errors import InstanceInUse
from aegaeon_worker.weights.instance_dir import InstanceDir

WORKER = """
import sys, time
from pathlib import Path
from aegaeon_worker.weights.instance_dir import InstanceDir
root, name, token, ephemeral = sys.argv[1:]
instance = InstanceDir.open(Path(root), name, token, ephemeral=ephemeral == "True")
(instance.weights_dir / "m.weights").write_bytes(b"weights")
(instance.kv_dir / "slabs").write_bytes(b"kv")
print("ready", flush=True)
time.sleep(60)
"""


def start_worker(
    root: Path, name: str = "one", token: str = "t", *, ephemeral: bool = False
) -> subprocess.Popen[str]:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(root), name, token, str(ephemeral)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    return worker


def kill(worker: subprocess.Popen[str]) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait(timeout=30)
    assert worker.stdout is not None
    worker.stdout.close()


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_closing_leaves_nothing(tmp_path: Path) -> None:
    instance = InstanceDir.open(tmp_path, "one", "t", ephemeral=False)
    (instance.weights_dir / "m.weights").write_bytes(b"w")
    (instance.kv_dir / "slabs").write_bytes(b"kv")
    instance.close(keep_weights=False)
    instance.close(keep_weights=False)
    assert everything(tmp_path) == []


def test_closing_can_keep_the_weights_for_the_next_start(tmp_path: Path) -> None:
    instance = InstanceDir.open(tmp_path, "one", "t", ephemeral=False)
    (instance.weights_dir / "m.weights").write_bytes(b"w")
    (instance.kv_dir / "slabs").write_bytes(b"kv")
    instance.close(keep_weights=True)
    again = InstanceDir.open(tmp_path, "one", "another token", ephemeral=False)
    assert (again.weights_dir / "m.weights").read_bytes() == b"w"
    assert list(again.kv_dir.iterdir()) == []
    again.close(keep_weights=False)
    assert everything(tmp_path) == []


def test_the_last_worker_out_cleans_up(tmp_path: Path) -> None:
    first = InstanceDir.open(tmp_path, "one", "t", ephemeral=True)
    second = InstanceDir.open(tmp_path, "one", "t", ephemeral=True)
    (first.weights_dir / "m.weights").write_bytes(b"w")
    first.close(keep_weights=False)
    assert (second.weights_dir / "m.weights").exists()
    second.close(keep_weights=False)
    assert everything(tmp_path) == []


def test_two_services_of_one_name_refuse_each_other(tmp_path: Path) -> None:
    worker = start_worker(tmp_path)
    with pytest.raises(InstanceInUse, match=rf"aegaeon-one belongs.*process {worker.pid}"):
        InstanceDir.open(tmp_path, "one", "other", ephemeral=False)
    InstanceDir.open(tmp_path, "two", "other", ephemeral=False).close(keep_weights=False)
    kill(worker)
    InstanceDir.open(tmp_path, "one", "other", ephemeral=False).close(keep_weights=False)
    assert everything(tmp_path) == []


def test_a_crashed_instance_is_reclaimed_and_its_weights_reused(tmp_path: Path) -> None:
    kill(start_worker(tmp_path))
    instance = InstanceDir.open(tmp_path, "one", "new token", ephemeral=False)
    assert [path.name for path in instance.weights_dir.iterdir()] == ["m.weights"]
    assert list(instance.kv_dir.iterdir()) == []
    instance.close(keep_weights=False)


def test_a_crashed_ephemeral_instance_is_removed_by_any_start(tmp_path: Path) -> None:
    kill(start_worker(tmp_path, "crashed", ephemeral=True))
    alive = start_worker(tmp_path, "alive", ephemeral=True)
    InstanceDir.open(tmp_path, "other", "t2", ephemeral=True).close(keep_weights=False)
    assert [path.name for path in tmp_path.iterdir()] == ["aegaeon-alive"]
    assert (tmp_path / "aegaeon-alive" / "kv" / "slabs").exists()
    kill(alive)


def test_a_crashed_worker_returns_to_its_ephemeral_service_and_finds_the_weights(
    tmp_path: Path,
) -> None:
    kill(start_worker(tmp_path, ephemeral=True))
    instance = InstanceDir.open(tmp_path, "one", "t", ephemeral=True)
    assert [path.name for path in instance.weights_dir.iterdir()] == ["m.weights"]
    instance.close(keep_weights=False)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 65])
def test_names_that_would_leave_the_directory_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="instance name"):
        InstanceDir.open(tmp_path, name, "t", ephemeral=False)
    assert everything(tmp_path) == []


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / "aegaeon-one").symlink_to(target)
    with pytest.raises(InstanceInUse, match="is a link"):
        InstanceDir.open(tmp_path, "one", "t", ephemeral=False)
    assert list(target.iterdir()) == []


def test_a_missing_root_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        InstanceDir.open(tmp_path / "nowhere", "one", "t", ephemeral=False)
