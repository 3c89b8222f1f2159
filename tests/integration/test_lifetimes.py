"""However a client ends, nothing of it is left: processes, sockets, folders, shared memory."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aegaeon.model_spec import ModelSpec
from tests.integration.surroundings import Surroundings

PROGRAM = Path(__file__).with_name("lifetime_program.py")
#: Daemons whose client is gone stop on their own.
FOLLOW_S = 10.0

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def surroundings_of_client(run_folder: Path, tmp_path: Path) -> Iterator[Surroundings]:
    with tempfile.TemporaryDirectory(prefix="lifetimes-", dir="/dev/shm") as shm_dir:
        yield Surroundings(run_folder, Path(shm_dir), tmp_path)


@pytest.fixture
def start(surroundings_of_client: Surroundings, tiny_models: list[ModelSpec]) -> Iterator[Start]:
    """Start a client; it has daemons and a request under way when this returns."""
    started: list[subprocess.Popen[str]] = []

    def start(way: str) -> subprocess.Popen[str]:
        process = surroundings_of_client.start(
            PROGRAM, way, tiny_models[0].path(), str(surroundings_of_client.shm_dir)
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "under way\n", process.communicate()[1]
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    for left in surroundings_of_client.processes():
        left.kill()


@pytest.mark.parametrize(
    ("way", "status"),
    [
        ("close", 0),
        ("forget", 0),
        ("raise", 1),
        ("lose aegaeon_worker", 0),
        ("lose aegaeon_scheduler", 0),
    ],
)
def test_nothing_is_left_when_the_client_ends_itself(
    start: Start, surroundings_of_client: Surroundings, way: str, status: int
) -> None:
    process = start(way)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    surroundings_of_client.assert_nothing_left(0)


@pytest.mark.parametrize(
    ("number", "within_s"), [("SIGINT", 0), ("SIGTERM", FOLLOW_S), ("SIGKILL", FOLLOW_S)]
)
def test_nothing_is_left_when_the_client_is_ended(
    start: Start, surroundings_of_client: Surroundings, number: str, within_s: float
) -> None:
    process = start("serve")
    assert len(surroundings_of_client.processes()) == 3
    assert any("weights" in path for path in surroundings_of_client.files())
    process.send_signal(signal.Signals[number])
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.Signals[number], errors
    surroundings_of_client.assert_nothing_left(within_s)
