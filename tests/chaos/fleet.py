"""The daemons of one cluster: started in the nursery, started again when they end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.chaos.nursery import SHM_FULL, SLOW_DISK

#: Torch is imported, possibly on a busy machine.
START_S = 120.0


class Lives(Protocol):
    """Who is told of a process; called on a thread of the nursery."""

    def began(self, pid: int) -> None: ...

    def ended(self, status: int) -> None: ...


class Nursery:
    """The process that daemons are forked from; shared by all clusters of a run."""

    def __init__(self) -> None:
        #: By name of those that are being started, and by pid of those that run.
        self._starting: dict[str, Lives] = {}
        self._running: dict[int, Lives] = {}
        self._changed = threading.Condition()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GRPC_ENABLE_FORK_SUPPORT": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "the nursery does not start"
        self._thread = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._thread.start()

    def fork(self, order: dict[str, Any], lives: Lives) -> None:
        """Start a daemon and return once it has a process id."""
        name = order["name"]
        with self._changed:
            self._starting[name] = lives
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
            assert self._changed.wait_for(lambda: name not in self._starting, START_S)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            with self._changed:
                if "started" in message:
                    lives = self._running[message["started"]] = self._starting.pop(message["name"])
                    lives.began(message["started"])
                    self._changed.notify_all()
                else:
                    self._running.pop(message["ended"]).ended(message["status"])


@dataclass
class Daemon:
    """One place in a cluster, and who has it now."""

    name: str
    order: dict[str, Any]
    #: Called when a process that had it has ended.
    lost: Callable[[Daemon], None]
    pid: int = 0
    starts: int = 0
    #: Exit statuses of those that had the place before; negative for signals.
    statuses: list[int] = field(default_factory=list)

    def began(self, pid: int) -> None:
        self.pid = pid

    def ended(self, status: int) -> None:
        self.pid = 0
        self.statuses.append(status)
        self.lost(self)


class Fleet:
    """Daemons by name. One that ends is started again after ``pause_s`` until `close`."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self._nursery = nursery
        self._folder = folder
        self.control = folder / "control"
        self.control.mkdir()
        self.daemons: dict[str, Daemon] = {}
        self.pause_s = 0.0
        self._closing = False
        self._lock = threading.RLock()
        self._timers: set[threading.Timer] = set()

    def start(self, name: str, module: str, flags: dict[str, object], advertise: str = "") -> str:
        """Start a daemon; returns its address once it serves."""
        words = [w for k, v in flags.items() for w in (f"--{k.replace('_', '-')}", str(v))]
        order = {
            "name": name,
            "module": module,
            "flags": words,
            "log": str(self._folder / f"{name}.log"),
            "ready": str(self._folder / f"{name}.ready"),
            "control": str(self.control),
            "advertise": advertise,
        }
        self.daemons[name] = Daemon(name, order, self._lost)
        self._fork(self.daemons[name])
        return self.wait_ready(name)

    def known_address(self, name: str) -> str:
        """Where it serves; empty while it does not."""
        with contextlib.suppress(FileNotFoundError):
            text = Path(self.daemons[name].order["ready"]).read_text()
            if text.endswith("\n") and json.loads(text)["pid"] == self.daemons[name].pid:
                return str(json.loads(text)["address"])
        return ""

    def wait_ready(self, name: str) -> str:
        """The address, once it serves."""
        deadline = time.monotonic() + START_S
        while True:
            address = self.known_address(name)
            if address:
                return address
            assert time.monotonic() < deadline, f"{name} does not serve: {self.log(name)}"
            time.sleep(0.01)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal, if somebody is there."""
        with self._lock:
            if pid := self.daemons[name].pid:
                with contextlib.suppress(ProcessLookupError):  # its end is being told just now
                    os.kill(pid, number)

    def flag(self, name: str, text: str | None) -> None:
        """Set or clear a fault of the machine."""
        assert name in (SHM_FULL, SLOW_DISK)
        if text is None:
            (self.control / name).unlink(missing_ok=True)
        else:
            (self.control / name).write_text(text)

    def settle(self) -> None:
        """Continue what was stopped, and wait until every place serves."""
        for name in self.daemons:
            self.signal(name, signal.SIGCONT)
        deadline = time.monotonic() + START_S
        while any(not daemon.pid for daemon in self.daemons.values()):
            assert time.monotonic() < deadline, self.describe()
            time.sleep(0.01)
        for name in self.daemons:
            self.wait_ready(name)

    def log(self, name: str) -> str:
        path = Path(self.daemons[name].order["log"])
        return path.read_text(errors="replace") if path.exists() else ""

    def describe(self) -> str:
        return ", ".join(f"{d.name}: {d.pid} after {d.statuses}" for d in self.daemons.values())

    def close(self, order: list[str]) -> list[str]:
        """Stop all cleanly, in ``order``; the names of those that did not end with status 0."""
        with self._lock:
            self._closing = True
        for timer in list(self._timers):
            timer.cancel()
        failed = []
        for name in order:
            daemon = self.daemons[name]
            had = len(daemon.statuses)
            if not daemon.pid:
                continue
            self.signal(name, signal.SIGCONT)
            self.signal(name, signal.SIGTERM)
            deadline = time.monotonic() + 30
            while daemon.pid and time.monotonic() < deadline:
                time.sleep(0.005)
            if daemon.pid:
                self.signal(name, signal.SIGKILL)
                failed.append(f"{name} does not stop")
            elif daemon.statuses[had:] != [0]:
                failed.append(f"{name} ended with {daemon.statuses[had:]}")
        return failed

    def _fork(self, daemon: Daemon) -> None:
        with self._lock:
            if self._closing:
                return
            daemon.starts += 1
            Path(daemon.order["ready"]).unlink(missing_ok=True)
        self._nursery.fork(daemon.order, daemon)

    def _lost(self, daemon: Daemon) -> None:
        if self._closing:
            return
        timer = threading.Timer(self.pause_s, self._fork, [daemon])
        timer.daemon = True
        self._timers = {t for t in self._timers if t.is_alive()} | {timer}
        timer.start()
