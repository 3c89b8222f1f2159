"""A lock between processes that the kernel releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold ``path`` exclusively, waiting for it; the file is gone again when nobody waits."""
    fd = _lock(path)
    try:
        yield
    finally:
        # Unlinked while held: whoever waited on this file finds it gone and opens a new one.
        path.unlink(missing_ok=True)
        os.close(fd)


def _lock(path: Path) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if is_linked(fd):
            return fd
        os.close(fd)


def is_linked(fd: int) -> bool:
    """Whether an open file still has a name, that is, whether nobody has removed it."""
    return os.fstat(fd).st_nlink > 0


def try_lock(fd: int) -> bool:
    """Take an open file exclusively unless anybody else holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
