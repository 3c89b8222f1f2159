"""Whatever a program and its daemons could leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
_MARK = "AEGAEON_TEST_RUN"


class Surroundings:
    """Programs started here inherit a mark and folders of their own."""

    def __init__(self, run_folder: Path, shm_dir: Path, torch_folder: Path) -> None:
        self.shm_dir = shm_dir
        self._folders = (run_folder, shm_dir)
        self._mark = uuid.uuid4().hex
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "XDG_RUNTIME_DIR": str(run_folder),
            "TMPDIR": str(run_folder),
            # Torch makes a folder of its own under TMPDIR when it is imported, and keeps it.
            "TORCHINDUCTOR_CACHE_DIR": str(torch_folder),
            _MARK: self._mark,
        }

    def start(self, program: Path, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> list[psutil.Process]:
        """Those that carry the mark."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark:
                    found.append(process)
            except psutil.Error:
                continue
        return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def files(self) -> list[str]:
        """Files, sockets and folders, temporary or in shared memory; they may go meanwhile."""
        return sorted(
            str(Path(parent) / name)
            for top in self._folders
            for parent, folders, files in os.walk(top)  # skips what has gone
            for name in [*folders, *files]
        )

    def assert_nothing_left(self, timeout_s: float) -> None:
        """Poll until nothing is left; what is there at the deadline is named."""
        deadline = time.monotonic() + timeout_s
        while True:
            left: Sequence[object] = [*map(_describe, self.processes()), *self.files()]
            if not left:
                return
            assert time.monotonic() < deadline, left
            time.sleep(0.05)


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())}"
    except psutil.Error:
        return str(process.pid)
