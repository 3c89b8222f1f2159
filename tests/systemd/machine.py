"""A machine of its own for units: a real systemd as the first process of new namespaces.

Needs root, systemd and a cgroup2 hierarchy to write to. No image and no network: its root is this
machine's, with everything that is written kept in memory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

_SYSTEMD = Path("/lib/systemd/systemd")
_SCRIPT = Path(__file__).with_name("boot.sh")
_TOOLS = ("unshare", "nsenter", "pivot_root", "systemctl", "systemd-sysusers", "runuser")
_NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
_BOOT_S = 60.0


class CannotBootError(Exception):
    """This machine does not allow it, for the reason given."""


def until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait for a condition; fails with ``what`` was waited for."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.05)


class Machine:
    """Boots when it is entered, and is gone with all its processes when it is left."""

    def __init__(self) -> None:
        """Raises CannotBootError."""
        if os.geteuid() != 0:
            raise CannotBootError("it needs root, for namespaces and mounts")
        missing = [name for name in _TOOLS if shutil.which(name) is None]
        if not _SYSTEMD.exists() or missing:
            raise CannotBootError(f"not installed: {', '.join(missing) or 'systemd'}")
        self._hierarchy = _cgroup2()
        self._folder = TemporaryDirectory(prefix="aegaeon-boot-")
        self._base = Path(self._folder.name)
        #: Seen inside as ``/srv/shared``.
        self.shared = self._base / "shared"
        self._console = self._base / "console"
        self._cgroup = self._hierarchy / self._base.name
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        for folder in (self.shared, self._base / "root"):
            folder.mkdir()
        self.shared.chmod(0o755)
        self._console.touch()
        try:
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all of it."""
        if self._process is not None:
            self._process.kill()  # its child, the first process, goes with it, and with that all
            self._process.wait()
        for folder in sorted(self._cgroup.rglob("*"), reverse=True):
            if folder.is_dir():
                _remove_cgroup(folder)
        if self._cgroup.exists():
            _remove_cgroup(self._cgroup)
        self._folder.cleanup()

    def run(
        self,
        *command: str,
        user: str = "root",
        check: bool = True,
        timeout_s: float = 120.0,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """What a command inside prints; AssertionError when it fails."""
        done = subprocess.run(
            [*self._enter(user, env or {}), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, *command: str, user: str = "root") -> subprocess.Popen[str]:
        """A command that runs inside while others do."""
        return subprocess.Popen(
            [*self._enter(user, {}), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def shown(self, unit: str, name: str) -> str:
        """A property of a unit, as its manager has it."""
        return self.run("systemctl", "show", "--value", "--property", name, unit).strip()

    def journal(self, *options: str) -> str:
        """What the machine's journal has."""
        return self.run("journalctl", "--quiet", "--no-pager", "--output=short-monotonic", *options)

    def _boot(self) -> None:
        self._cgroup.mkdir()
        environment = {
            "PATH": os.environ["PATH"],
            "WORK": str(self._base / "root"),
            "SHARED": str(self.shared),
            "PYTHON": sys.base_prefix,
            "PACKAGES": sysconfig.get_path("purelib"),
            "CONSOLE": str(self._console),
        }
        enter = f"echo $$ > {self._cgroup}/cgroup.procs && exec "
        namespaces = ["unshare", "--fork", "--kill-child", *_NAMESPACES]
        self._process = subprocess.Popen(
            ["sh", "-c", f'{enter} "$@"', "sh", *namespaces, "sh", str(_SCRIPT)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._console.open("ab"),
            stderr=subprocess.STDOUT,
        )
        try:
            until(self._is_up, _BOOT_S, "systemd has started everything")
        except AssertionError as error:
            raise CannotBootError(f"{error}; it said: {self._said()}") from error

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise CannotBootError(f"systemd did not start; it said: {self._said()}")
        if not self._pid:
            pid = self._process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if not children or Path(f"/proc/{children[0]}/comm").read_text() != "systemd\n":
                return False
            self._pid = int(children[0])
        state = self.run("systemctl", "is-system-running", check=False).strip()
        return state in ("running", "degraded")

    def _said(self) -> str:
        return " / ".join(self._console.read_text(errors="replace").splitlines()[-5:])

    def _enter(self, user: str, env: Mapping[str, str]) -> list[str]:
        words = ["nsenter", f"--target={self._pid}", *_NAMESPACES, "--root", "--wd"]
        words += ["env", "-i", "PATH=/opt/aegaeon/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"]
        words += [f"{name}={value}" for name, value in env.items()]
        return words if user == "root" else [*words, "runuser", "-u", user, "--"]


def _cgroup2() -> Path:
    """Where this process may make cgroups of the second version. Raises CannotBootError."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2":
            if "ro" in options.split(","):
                raise CannotBootError(f"{place}, the cgroup2 hierarchy, cannot be written")
            own = [
                entry.removeprefix("0::/")
                for entry in Path("/proc/self/cgroup").read_text().splitlines()
                if entry.startswith("0::")
            ]
            return Path(place, *own)
    raise CannotBootError("there is no cgroup2 hierarchy")


def _remove_cgroup(folder: Path) -> None:
    """Once its last process has gone."""
    deadline = time.monotonic() + 10
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
