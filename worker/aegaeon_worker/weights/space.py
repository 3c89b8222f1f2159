"""Room in a shared directory, checked and allocated before it is touched.

A write through a mapping of a file in a full file system kills the process with SIGBUS, so every
byte is allocated first, where a lack of room is an ordinary error.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from aegaeon.machine import available_memory
from aegaeon_worker.weights.errors import SharedMemoryFull


def free_nbytes(directory: Path) -> int:
    """Bytes that can still be written: the file system's, or the machine's if that is memory."""
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    return min(free, available_memory()) if _is_in_memory(directory) else free


def require_room(directory: Path, purpose: str, nbytes: int) -> None:
    """Raise ``SharedMemoryFull`` unless ``nbytes`` more bytes fit into ``directory``."""
    free = free_nbytes(directory)
    if nbytes > free:
        raise SharedMemoryFull(directory, purpose, nbytes, free)


def allocate(fd: int, offset: int, nbytes: int, directory: Path, purpose: str) -> None:
    """Allocate bytes of a file; ``SharedMemoryFull`` and no bytes if the room runs out."""
    try:
        os.posix_fallocate(fd, offset, nbytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
            free = free_nbytes(directory)
            raise SharedMemoryFull(directory, purpose, nbytes, free) from error
        raise


def allocated_nbytes(path: Path) -> int:
    """Bytes a file really occupies, holes not counted."""
    return path.stat().st_blocks * 512


def _is_in_memory(directory: Path) -> bool:
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[2] == wanted:
            return fields[fields.index("-") + 1] in ("tmpfs", "ramfs")
    return False
