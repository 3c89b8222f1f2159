"""Budget and eviction of the weight cache's directory."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from aegaeon_worker.weights.errors import SharedMemoryFull, WeightCacheFull
from aegaeon_worker.weights.file_lock import file_lock, try_lock
from aegaeon_worker.weights.manifest import read_identity
from aegaeon_worker.weights.space import allocated_nbytes, free_nbytes

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CachedFile:
    """A complete file of the cache."""

    path: Path
    model: str
    fingerprint: str
    nbytes: int
    """Bytes it occupies."""
    last_used_ns: int
    """When a worker last took or released it, on the wall clock."""
    in_use: bool


class CacheRoom:
    """What occupies the directory, and what may leave it. Callers hold ``lock()`` to change it."""

    def __init__(self, directory: Path, budget_nbytes: int) -> None:
        self.budget_nbytes = budget_nbytes
        self.evictions: deque[CachedFile] = deque(maxlen=100)
        self._directory = directory

    def lock(self) -> AbstractContextManager[None]:
        """Serialise eviction, removal and allocation between all workers of the node."""
        return file_lock(self._directory / "room.lock")

    def require_budget(self) -> None:
        """Raise ``SharedMemoryFull`` unless the whole budget fits into the directory."""
        available = free_nbytes(self._directory) + self.used_nbytes()
        if self.budget_nbytes > available:
            raise SharedMemoryFull(
                self._directory, "the weight cache's budget", self.budget_nbytes, available
            )

    def used_nbytes(self) -> int:
        """Bytes occupied by complete files and files being packed."""
        return sum(_occupied(path) for path in self._paths("*.weights", "*.partial"))

    def files(self) -> list[CachedFile]:
        """Every complete file, least recently used first."""
        files = [_describe(path) for path in self._paths("*.weights")]
        return sorted((file for file in files if file), key=lambda file: file.last_used_ns)

    def make_room(self, model: str, nbytes: int) -> None:
        """Evict unused files, least recently used first, until ``nbytes`` more bytes fit.

        Nothing is evicted if that would not be enough.
        """
        self._discard_dead()
        files = self.files()
        used, free = self.used_nbytes(), free_nbytes(self._directory)
        evictable = sum(file.nbytes for file in files if not file.in_use)
        if used + nbytes - evictable > self.budget_nbytes:
            raise _cache_full(model, nbytes, self.budget_nbytes, used, files)
        if nbytes > free + evictable:
            purpose = f"the weights of {model}"
            raise SharedMemoryFull(self._directory, purpose, nbytes, free + evictable)
        shortfall = max(used + nbytes - self.budget_nbytes, nbytes - free)
        for file in files:
            if shortfall <= 0:
                return
            if not file.in_use and discard(file.path):
                shortfall -= file.nbytes
                self.evictions.append(file)
                _logger.info("evicted the weights of %s (%d bytes)", file.model, file.nbytes)
        if shortfall > 0:
            raise _cache_full(model, nbytes, self.budget_nbytes, used, self.files())

    def _discard_dead(self) -> None:
        """Remove what cannot be used: files of packers that died, files without a header."""
        for path in self._paths("*.partial"):
            if discard(path):
                _logger.warning("removed %s, whose packer died", path)
        for path in self._paths("*.weights"):
            if read_identity(path) is None and discard(path):
                _logger.warning("removed %s, which is damaged", path)

    def _paths(self, *patterns: str) -> Iterable[Path]:
        for pattern in patterns:
            yield from self._directory.glob(pattern)


def discard(path: Path) -> bool:
    """Delete a file unless a process holds it; false if one does.

    Truncated first: a process that still maps the file without using it frees the pages too.
    """
    fd = _open(path)
    if fd is None:
        return False
    try:
        if not try_lock(fd):
            return False
        os.ftruncate(fd, 0)
        path.unlink()
        return True
    finally:
        os.close(fd)


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _occupied(path: Path) -> int:
    try:
        return allocated_nbytes(path)
    except FileNotFoundError:
        return 0


def _describe(path: Path) -> CachedFile | None:
    fd = _open(path)
    if fd is None:
        return None
    try:
        identity = read_identity(path)
        if identity is None:
            return None
        status = os.fstat(fd)
        in_use = not try_lock(fd)
        return CachedFile(path, *identity, status.st_blocks * 512, status.st_mtime_ns, in_use)
    finally:
        os.close(fd)


def _cache_full(
    model: str, nbytes: int, budget: int, used: int, files: list[CachedFile]
) -> WeightCacheFull:
    in_use = [file for file in files if file.in_use]
    holders = ", ".join(f"{file.model} {file.nbytes}" for file in in_use)
    available = max(0, budget - sum(file.nbytes for file in in_use))
    return WeightCacheFull(
        f"the weights of {model} need {nbytes} bytes, but of the cache's budget of {budget} bytes "
        f"{used} are occupied and only files not in use can leave (in use: {holders or 'none'}); "
        f"raise model_cache_size or serve fewer models at a time",
        metadata={"needed_bytes": nbytes, "available_bytes": available},
    )
