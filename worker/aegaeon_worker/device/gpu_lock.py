"""Who owns a GPU: one process of this software at a time."""

from __future__ import annotations

import os
from pathlib import Path

from aegaeon_worker.device.errors import DeviceUnavailable
from aegaeon_worker.weights.file_lock import is_linked, try_lock


class GpuLock:
    """Holds ``aegaeon-gpu-<uuid>.lock`` in a folder that all workers of the machine share.

    The kernel drops the lock of a process that dies, however it dies.
    """

    def __init__(self, folder: Path, uuid: str, name: str) -> None:
        """``DeviceUnavailable`` if another process holds the device."""
        self._path = folder / f"aegaeon-gpu-{uuid}.lock"
        while True:
            fd = _open(self._path)
            if not try_lock(fd):
                owner = os.pread(fd, 32, 0).decode().strip()
                os.close(fd)
                raise DeviceUnavailable(
                    f"{name} ({uuid}) belongs to another worker, process {owner or 'unknown'}; "
                    "stop that one, or choose another device with --device",
                    metadata={"pid": owner, "uuid": uuid},
                )
            if is_linked(fd):
                break
            os.close(fd)  # its last holder has just removed it
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Let another process have the device."""
        # Unlinked while held: whoever waited on this file finds it gone and opens a new one.
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError as error:
        raise DeviceUnavailable(
            f"{path} belongs to another user, who uses this device or did; remove it once no "
            "worker of that user runs"
        ) from error
