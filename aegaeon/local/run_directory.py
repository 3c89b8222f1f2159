"""A private folder for the sockets and logs of one client's daemons.

The client holds a lock on a file in it for as long as it lives; the kernel drops the lock however
the client ends, so a folder whose lock is free belongs to nobody and the next start removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Before the name of every such folder.
PREFIX = "aegaeon-"
#: The file in it whose lock tells that its owner lives.
LOCK = "owner.lock"
# A unix socket's path has 107 bytes at most; the longest name in the folder is below 20.
_MAX_FOLDER_BYTES = 80


class RunDirectory:
    """Made on construction, removed by ``remove``."""

    def __init__(self) -> None:
        root = runtime_roots()[0]
        _remove_abandoned(root)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        self._lock = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def name(self) -> str:
        """Unique on this machine while the folder is there."""
        return self.path.name.removeprefix(PREFIX)

    def remove(self) -> None:
        """Remove the folder and all in it. Idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def runtime_roots() -> list[Path]:
    """Where folders of running services may be, the first choice first."""
    folders = []
    for folder in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()):
        usable = folder and len(folder.encode()) <= _MAX_FOLDER_BYTES
        if folder and usable and os.access(folder, os.W_OK | os.X_OK):
            folders.append(Path(folder))
    return [*folders, Path("/tmp")]


def _remove_abandoned(root: Path) -> None:
    for folder in root.glob(PREFIX + "*"):
        # Another user's folder, or one that vanishes meanwhile, is none of our business.
        with contextlib.suppress(OSError), locked(folder / LOCK) as free:
            if free:
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Take the lock of an existing file for a moment; False when somebody else holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)
