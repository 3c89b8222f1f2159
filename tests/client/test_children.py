"""Daemons as children: nothing outlives the client, and a death is explained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import aegaeon.local.cluster
from aegaeon import LLMService, NodeConfig, Request
from aegaeon.errors import ConfigError, RequestTimeoutError, UnavailableError
from tests.client.client_program import stub_command

PROGRAM = Path(__file__).with_name("client_program.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(root))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return root


@pytest.fixture
def stub_daemons(run_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(aegaeon.local.cluster, "daemon_command", stub_command)
    return run_root


@pytest.fixture
def client(run_root: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(way: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), way],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def daemons_of(root: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(root) in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


def assert_nothing_left(root: Path, *, folders: bool = True, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while left := [str(process) for process in daemons_of(root)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    if folders:
        assert list(root.iterdir()) == []


def first_line(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line
    pytest.fail(f"the client ended: {process.communicate()[1]}")


def test_a_service_starts_its_daemons_and_ends_them(stub_daemons: Path) -> None:
    nodes = [NodeConfig("a", 0, 0, 2), NodeConfig("b", 0, 0, 1)]
    with LLMService(nodes) as service:
        assert len(daemons_of(stub_daemons)) == 4
        assert service.address.startswith("unix:")
        [steps] = service.serve([Request("echo", 0.0, 0, [1], 2)])
        assert isinstance(steps, list)
    assert_nothing_left(stub_daemons, timeout_s=0)


def test_nodes_on_one_machine_keep_their_shared_memory_apart(stub_daemons: Path) -> None:
    nodes = [NodeConfig("a", 0, 0, 2), NodeConfig("b", 0, 0, 1)]
    with LLMService(nodes):
        workers = [p.cmdline() for p in daemons_of(stub_daemons) if "aegaeon_worker" in p.cmdline()]
    homes = {
        (flags[flags.index("--node-id") + 1], flags[flags.index("--instance") + 1])
        for flags in workers
    }
    assert len(workers) == 3
    assert len(homes) == len({instance for _, instance in homes}) == 2
    assert all(instance[0].isalnum() for _, instance in homes)
    with pytest.raises(ConfigError, match="share one shm_dir"):
        LLMService([NodeConfig("a", 0, 0, 1), NodeConfig("b", 0, 0, 1, shm_dir="/elsewhere")])


def test_workers_are_told_their_place_and_budgets(stub_daemons: Path) -> None:
    sizes = {"cpu_num_slabs": 3, "cpu_slab_size_bytes": 2**20, "model_cache_size": 2**25}
    with LLMService([NodeConfig("n", 0, 0, 1, device_memory_bytes=2**26, **sizes)]) as service:
        [worker] = [p for p in daemons_of(stub_daemons) if "aegaeon_worker" in p.cmdline()]
        flags = worker.cmdline()[3:]
        flags.remove("--allow-remote-code")  # it is its user's own
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    assert given["--scheduler"] == service.address
    assert (given["--node-id"], given["--worker-index"]) == ("n", "0")
    assert (given["--cpu-num-slabs"], given["--cpu-slab-bytes"]) == ("3", str(2**20))
    assert (given["--model-cache-bytes"], given["--device-memory-bytes"]) == (
        str(2**25),
        str(2**26),
    )
    assert int(given["--threads"]) >= 1


@pytest.mark.parametrize(("way", "status"), [("forget", 0), ("raise", 1)])
def test_nothing_is_left_when_the_client_just_ends(
    run_root: Path, client: Callable[[str], subprocess.Popen[str]], way: str, status: int
) -> None:
    process = client(way)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert_nothing_left(run_root, timeout_s=0)


@pytest.mark.parametrize(("way", "word"), [("serve", "directory"), ("stream", "token")])
def test_ctrl_c_ends_everything(
    run_root: Path, client: Callable[[str], subprocess.Popen[str]], way: str, word: str
) -> None:
    process = client(way)
    first_line(process, word)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert process.returncode == -signal.SIGINT
    assert_nothing_left(run_root, timeout_s=0)


def test_daemons_follow_a_killed_client_and_clean_up(
    run_root: Path, client: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = client("serve")
    first_line(process, "directory")
    assert len(daemons_of(run_root)) == 2
    process.send_signal(signal.SIGKILL)
    assert_nothing_left(run_root)


def test_the_next_start_removes_what_killed_processes_left(
    run_root: Path,
    client: Callable[[str], subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = client("serve")
    first_line(process, "directory")
    for daemon in daemons_of(run_root):
        daemon.kill()
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)  # until then it owns its folder
    assert_nothing_left(run_root, folders=False)
    [abandoned] = run_root.iterdir()
    monkeypatch.setattr(aegaeon.local.cluster, "daemon_command", stub_command)
    with LLMService([NodeConfig("node_0", 0, 0, 1)]):
        assert not abandoned.exists()
    assert_nothing_left(run_root, timeout_s=0)


def test_two_clients_do_not_disturb_each_other(stub_daemons: Path) -> None:
    with LLMService([NodeConfig("node_0", 0, 0, 1)]) as first:
        with LLMService([NodeConfig("node_0", 0, 0, 1)]) as second:
            assert first.address != second.address
        [steps] = first.serve([Request("echo", 0.0, 0, [1], 2)])
        assert isinstance(steps, list)


def test_a_daemon_that_dies_at_start_is_quoted(
    stub_daemons: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_FAILS", "1")
    with pytest.raises(UnavailableError) as caught:
        LLMService([NodeConfig("node_0", 0, 0, 1)])
    text = str(caught.value)
    assert "worker node_0/0" in text
    assert "exit status 1" in text
    assert "no room on the device" in text
    assert_nothing_left(stub_daemons, timeout_s=0)


def test_a_daemon_that_is_not_ready_in_time_is_named(
    run_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)", str(run_root)]
    monkeypatch.setattr(aegaeon.local.cluster, "daemon_command", lambda module: sleeper)
    with pytest.raises(RequestTimeoutError, match="scheduler did not serve in time"):
        LLMService([NodeConfig("node_0", 0, 0, 1)], startup_timeout_s=0.5)
    assert_nothing_left(run_root, timeout_s=0)


def test_requests_end_at_once_when_a_needed_daemon_dies(stub_daemons: Path) -> None:
    for victim in ("aegaeon_scheduler", "aegaeon_worker"):
        with LLMService([NodeConfig("node_0", 0, 0, 1)], daemon_restarts=0) as service:
            stream = service.stream(Request("slow", 0.0, 0, [1], 100_000))
            next(stream)
            [daemon] = [p for p in daemons_of(stub_daemons) if victim in p.cmdline()]
            os.kill(daemon.pid, signal.SIGKILL)
            started = time.monotonic()
            with pytest.raises(UnavailableError, match="was ended by SIGKILL"):
                list(stream)
            assert time.monotonic() - started < 5
            [outcome] = service.serve([Request("slow", 0.0, 0, [1], 100_000)])
            assert isinstance(outcome, UnavailableError)
    assert_nothing_left(stub_daemons, timeout_s=0)
