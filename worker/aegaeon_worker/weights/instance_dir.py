"""The directory of one service instance in shared memory.

Ownership rule: every worker of the instance holds ``owner.lock`` shared for as long as it lives.
The first one writes the service's token into it; others join only with the same token; the last
one out cleans up. The kernel drops the lock of a killed worker, so a directory whose lock nobody
holds belongs to a crashed instance and is reclaimed at the next start. A guard lock beside the
directory serialises opening, closing and reclaiming.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from aegaeon.errors import ConfigError
from aegaeon.instance import INSTANCE_PREFIX, instance_folder
from aegaeon_worker.weights.errors import InstanceInUse
from aegaeon_worker.weights.file_lock import file_lock, try_lock

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class _Owner:
    token: str
    ephemeral: bool
    pid: int


class InstanceDir:
    """``<root>/aegaeon-<name>``: this worker's membership in its service instance."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self.weights_dir = path / "weights"
        self.kv_dir = path / "kv"
        self._lock_fd = lock_fd
        self._closed = False

    @classmethod
    def open(cls, root: Path, name: str, token: str, *, ephemeral: bool) -> InstanceDir:
        """Create or join the instance ``name``; reclaim what dead instances left under ``root``.

        ``token`` is the same for all workers of one service on this node. Weights of an earlier
        run are kept unless that run was ``ephemeral`` and of another token. ``InstanceInUse`` if
        workers with another token are alive under this name.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"instance name {name!r}: use 1 to 64 letters, digits, dots, dashes, underscores"
            )
        if not root.is_dir():
            raise ConfigError(f"shared-memory directory {root} does not exist")
        reclaim_dead(root, token)
        with file_lock(_guard(root, name)):
            path = instance_folder(root, name)
            path.mkdir(mode=0o700, exist_ok=True)
            _require_ownership(path)
            fd = os.open(path / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _enter(path, fd, _Owner(token, ephemeral, os.getpid()))
            except BaseException:
                os.close(fd)
                raise
        instance = cls(path, fd)
        instance.weights_dir.mkdir(exist_ok=True)
        instance.kv_dir.mkdir(exist_ok=True)
        return instance

    def close(self, *, keep_weights: bool) -> None:
        """Leave; the last worker removes everything, or everything but the weights."""
        if self._closed:
            return
        self._closed = True
        with file_lock(_guard(self.path.parent, self.path.name.removeprefix(INSTANCE_PREFIX))):
            if try_lock(self._lock_fd):
                _clear(self.path, keep_weights=keep_weights)
            os.close(self._lock_fd)


def reclaim_dead(root: Path, token: str) -> list[Path]:
    """Clear what instances without a living worker left behind; return their directories.

    Ephemeral ones are removed; of the others, and of the service ``token`` itself, whose workers
    come back after a crash, the weights stay for the next start.
    """
    reclaimed = []
    for path in sorted(root.glob(f"{INSTANCE_PREFIX}*")):
        if path.is_symlink() or not path.is_dir() or path.stat().st_uid != os.geteuid():
            continue
        with file_lock(_guard(root, path.name.removeprefix(INSTANCE_PREFIX))):
            if _reclaim(path, token):
                reclaimed.append(path)
    return reclaimed


def _reclaim(path: Path, token: str) -> bool:
    try:
        fd = os.open(path / "owner.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not try_lock(fd):
            return False
        owner = _read_owner(fd)
        keep = owner is not None and (owner.token == token or not owner.ephemeral)
        _clear(path, keep_weights=keep)
        return True
    finally:
        os.close(fd)


def _enter(path: Path, fd: int, owner: _Owner) -> None:
    if try_lock(fd):
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(asdict(owner)).encode(), 0)
    else:
        current = _read_owner(fd)
        if current is None or current.token != owner.token:
            pid = "unknown" if current is None else current.pid
            raise InstanceInUse(
                f"{path} belongs to another running service (first worker: process {pid}); "
                f"stop it or choose another instance name"
            )
    fcntl.flock(fd, fcntl.LOCK_SH)


def _read_owner(fd: int) -> _Owner | None:
    """The record in ``owner.lock``; none if its writer died before it was complete."""
    try:
        return _Owner(**json.loads(os.pread(fd, 4096, 0)))
    except (ValueError, TypeError):
        return None


def _clear(path: Path, *, keep_weights: bool) -> None:
    kept = {"weights", "owner.lock"} if keep_weights and _has_weights(path) else set()
    for entry in path.iterdir():
        if entry.name in kept:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if not kept:
        path.rmdir()


def _has_weights(path: Path) -> bool:
    return any((path / "weights").glob("*.weights"))


def _require_ownership(path: Path) -> None:
    status = path.lstat()
    if path.is_symlink() or status.st_uid != os.geteuid():
        raise InstanceInUse(
            f"{path} belongs to another user (uid {status.st_uid}) or is a link; "
            f"remove it or choose another instance name"
        )


def _guard(root: Path, name: str) -> Path:
    return root / f".{INSTANCE_PREFIX}{name}.lock"
