"""Daemons started by hand, as an operator would."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

#: Torch is imported, possibly on a busy machine.
START_S = 60.0
STOP_S = 20.0


def until(condition: Callable[[], object], timeout_s: float = 20.0, what: str = "") -> None:
    """Poll until ``condition`` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what or condition}"
        time.sleep(0.02)


class Daemon:
    """A running ``aegaeon_scheduler`` or ``aegaeon_worker``."""

    def __init__(
        self, module: str, flags: Sequence[str], log: Path, prefix: Sequence[str] = ()
    ) -> None:
        self.log = log
        self.address = ""
        self._listen = dict(itertools.pairwise(flags)).get("--listen", "")
        self._ready, write = os.pipe()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, *flags, "--ready-fd", str(write)],
                pass_fds=(write,),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        os.close(write)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_ready(self) -> Daemon:
        """Return once it serves; its address is known then."""
        readable, _, _ = select.select([self._ready], [], [], START_S)
        line = os.read(self._ready, 4096) if readable else b""
        assert line, f"the daemon does not serve: {self.log.read_text()}"
        self.address = json.loads(line)["address"]
        return self

    def wait_failed(self) -> str:
        """What it said before it ended with an error."""
        assert self.process.wait(START_S) == 1, self.log.read_text()
        return self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._tidy()

    def stop(self) -> None:
        """A clean stop."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(STOP_S) == 0, self.log.read_text()

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._tidy()
        if self._ready >= 0:
            os.close(self._ready)
            self._ready = -1

    def _tidy(self) -> None:
        """Remove the socket of one that was killed, by whomever: the kernel leaves it."""
        if self.process.returncode == -signal.SIGKILL and self._listen.startswith("unix:"):
            Path(self._listen.removeprefix("unix:")).unlink(missing_ok=True)


class Daemons:
    """Starts daemons in one folder; `running_daemons` ends them, the last started first."""

    def __init__(self, folder: Path, shm_dir: Path) -> None:
        self._folder = folder
        self._shm_dir = shm_dir
        self._started: list[Daemon] = []

    def scheduler(self, listen: str = "", *, prefix: Sequence[str] = (), **flags: object) -> Daemon:
        """A scheduler that serves."""
        own = {"listen": listen or f"unix:{self._folder}/s", **flags}
        return self.start("aegaeon_scheduler", own, prefix).wait_ready()

    def worker(
        self,
        scheduler: str,
        *,
        module: str = "aegaeon_worker",
        prefix: Sequence[str] = (),
        **flags: object,
    ) -> Daemon:
        """A worker that may not serve yet; its device holds one tiny model."""
        defaults = {
            "scheduler": scheduler,
            "listen": f"unix:{self._folder}/w{len(self._started)}",
            "node_id": "node_0",
            "shm_dir": self._shm_dir,
            "cpu_num_slabs": 4,
            "cpu_slab_bytes": 4 << 20,
            "model_cache_bytes": 64 << 20,
            "device_memory_bytes": 64 << 20,
            "threads": 1,
        }
        return self.start(module, {**defaults, **flags}, prefix)

    def start(self, module: str, flags: Mapping[str, object], prefix: Sequence[str] = ()) -> Daemon:
        """Any daemon; ``prefix`` are the words of a command that runs it."""
        words = [
            word for key, value in flags.items() for word in (f"--{key.replace('_', '-')}", value)
        ]
        log = self._folder / f"{len(self._started)}.log"
        daemon = Daemon(module, [str(word) for word in words if word is not True], log, prefix)
        self._started.append(daemon)
        return daemon

    def close(self) -> None:
        for daemon in reversed(self._started):
            daemon.close()


@contextmanager
def running_daemons(folder: Path, shm_dir: Path) -> Iterator[Daemons]:
    daemons = Daemons(folder, shm_dir)
    try:
        yield daemons
    finally:
        daemons.close()


def restart_command(pid: int) -> list[str]:
    """The command of a running daemon, without what only its own parent can hand to it."""
    words = psutil.Process(pid).cmdline()
    own = {"--lifeline-fd", "--lifeline-folder", "--ready-fd"}
    kept = [words[0]]
    for before, word in itertools.pairwise(words):
        if before not in own and word not in own:
            kept.append(word)
    return kept
