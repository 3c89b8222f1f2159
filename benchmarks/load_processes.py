"""The processes of the scheduler's load test, and what each of them costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil


class LineProcess:
    """A child that answers every line with one line of JSON; it ends when its stdin is closed."""

    def __init__(self, module: str, *flags: str) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def ask(self, line: str = "") -> dict[str, Any]:
        """Send a line and wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Let it end; kill it when it does not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._module} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass(frozen=True)
class Daemon:
    """A running daemon."""

    address: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Processor time so far, of all its threads."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def memory_mib(self) -> float:
        """Resident memory."""
        return float(self.process.memory_info().rss / 2**20)


@contextmanager
def scheduler_daemon(*flags: str) -> Iterator[tuple[Daemon, Path]]:
    """The real daemon on a unix socket in a folder of its own, which is given as well."""
    with TemporaryDirectory(prefix="load-") as name:
        listen = f"unix:{Path(name) / 's'}"
        with _daemon("aegaeon_scheduler", "--listen", listen, *flags) as daemon:
            yield daemon, Path(name)


@contextmanager
def gateway_daemon(scheduler: str) -> Iterator[Daemon]:
    """The real gateway on a free port of loopback."""
    with _daemon("aegaeon.http", "--scheduler", scheduler, "--port", "0") as daemon:
        yield daemon


@contextmanager
def _daemon(module: str, *flags: str) -> Iterator[Daemon]:
    with ExitStack() as stack:
        read, write = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--ready-fd", str(write), *flags],
            pass_fds=(write,),
            env={**os.environ, "AEGAEON_LOG_LEVEL": "ERROR", "GRPC_VERBOSITY": "NONE"},
        )
        stack.callback(_stop, process)
        os.close(write)
        with os.fdopen(read) as ready:
            line = ready.readline()
        if not line:
            raise RuntimeError(f"{module} did not start: {process.wait()}")
        yield Daemon(json.loads(line)["address"], psutil.Process(process.pid))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
