"""One instance for all tests that leave it as they found it, and the command as it is typed."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from aegaeon.instances.records import find_instance
from aegaeon.model_spec import ModelSpec
from tests.integration.surroundings import ROOT, Surroundings
from tests.integration.text_model import SHORT_CONTEXT, text_model
from tests.metrics.scraping import Samples, parse

MIB = 1 << 20
#: For a machine that other tests keep busy.
TIMEOUT_S = 120


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@dataclass(frozen=True)
class Command:
    """``aegaeon`` with an environment of its own, in which no other instance is found."""

    surroundings: Surroundings
    run_folder: Path
    shm_dir: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A process."""
        return subprocess.Popen(
            [sys.executable, "-m", "aegaeon.cli", *arguments],
            env={**self.surroundings.environment, "AEGAEON_INSTANCE": "tests"},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status and output."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=90)
        return process.returncode, out, err

    def metrics(self) -> Samples:
        """What its processes tell Prometheus now."""
        record = find_instance("tests")
        assert record is not None
        texts = [httpx.get(url).text for url in record.metrics]
        assert len(texts) == 3
        return {key: value for text in texts for key, value in parse(text).items()}

    @property
    def sizes(self) -> list[str]:
        """Of an instance that is cheap to run, on any free port."""
        flags = {
            "--workers": 1,
            "--device-memory-bytes": 128 * MIB,
            "--model-cache-bytes": 64 * MIB,
            "--cpu-num-slabs": 4,
            "--cpu-slab-bytes": 4 * MIB,
            "--shm-dir": self.shm_dir,
            "--port": 0,
        }
        return [str(word) for flag in flags.items() for word in flag]


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    run_folder = Path(tempfile.mkdtemp(prefix="run-"))
    shm_dir = Path(tempfile.mkdtemp(prefix="cli-", dir="/dev/shm"))
    surroundings = Surroundings(run_folder, shm_dir, tmp_path_factory.mktemp("inductor"))
    with pytest.MonkeyPatch.context() as patch:
        # For `main` in this process.
        patch.setenv("XDG_RUNTIME_DIR", str(run_folder))
        patch.setenv("AEGAEON_INSTANCE", "tests")
        patch.delenv("AEGAEON_ADDRESS", raising=False)
        patch.setenv("COLUMNS", "160")
        yield Command(surroundings, run_folder, shm_dir)
    for process in surroundings.processes():
        process.kill()
    left = surroundings.files()
    shutil.rmtree(run_folder)
    shutil.rmtree(shm_dir)
    assert left == []


@pytest.fixture(scope="session")
def text_specs(tmp_path_factory: pytest.TempPathFactory) -> list[ModelSpec]:
    """Tiny models with tokenizers: one with a long context, one with a short one."""
    folder = tmp_path_factory.mktemp("text")
    return [text_model("long", folder), text_model("short", folder, context=SHORT_CONTEXT)]


@pytest.fixture(scope="session")
def instance(command: Command, text_specs: list[ModelSpec]) -> Iterator[Command]:
    """Runs with both models. Tests leave it without requests, and with both deployed."""
    models = [f"{spec.name}={spec.path()}" for spec in text_specs]
    port = str(two_free_ports())
    flags = [*command.sizes, "--metrics-port", port, "--detach"]
    status, out, err = command.run("start", *models, *flags)
    assert status == 0, err
    assert "serves" in out
    yield command
    assert command.run("stop")[0] == 0


def two_free_ports() -> int:
    """The first of two that follow each other."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
                return port
