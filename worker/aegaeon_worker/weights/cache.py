"""The weight cache of a node, shared by the workers of one instance."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from aegaeon_worker.device.interface import HostPinning
from aegaeon_worker.weights.cache_room import CachedFile, CacheRoom, discard
from aegaeon_worker.weights.errors import WeightsInUse
from aegaeon_worker.weights.file_lock import file_lock, is_linked
from aegaeon_worker.weights.layout import WeightLayout
from aegaeon_worker.weights.manifest import Manifest, data_offset
from aegaeon_worker.weights.space import allocate
from aegaeon_worker.weights.weight_file import MappedFile, WeightFile, layout_views

Fill = Callable[[Mapping[str, torch.Tensor]], None]


@dataclass(frozen=True)
class WeightSource:
    """Where a model's bytes come from when the cache does not hold them."""

    manifest: Manifest
    fill: Fill


class WeightCache:
    """Packed weight files within a byte budget; least recently used models leave first.

    Several processes share the directory. A file in use is held by shared ``flock``, which the
    kernel drops when its user dies; who packs holds a lock of the model, who makes room holds the
    directory's. Methods may be called from any thread.
    """

    def __init__(
        self, directory: Path, budget_nbytes: int, pinning: HostPinning | None = None
    ) -> None:
        """Use ``directory``, which exists; ``SharedMemoryFull`` if it cannot hold the budget.

        ``pinning`` makes mapped files fast to copy from.
        """
        self._directory = directory
        self._pinning = pinning
        self._room = CacheRoom(directory, budget_nbytes)
        self._room.require_budget()
        self._mutex = threading.Lock()
        self._mapped: dict[str, MappedFile] = {}

    @property
    def budget_nbytes(self) -> int:
        """Bytes that the files of all workers together may occupy."""
        return self._room.budget_nbytes

    @property
    def used_nbytes(self) -> int:
        """Bytes occupied now, by files of all workers and files being packed."""
        return self._room.used_nbytes()

    @property
    def evictions(self) -> tuple[CachedFile, ...]:
        """The last 100 files that this worker evicted, oldest first."""
        return tuple(self._room.evictions)

    def acquire(self, model: str, fingerprint: str, layout: WeightLayout, fill: Fill) -> WeightFile:
        """Pin the packed file of a model, packing it through ``fill`` if it is not there.

        ``fingerprint`` names the weights, shard included: a file with another one is not used.
        While another worker packs the same file, this waits for it. ``WeightCacheFull`` if the
        budget, ``SharedMemoryFull`` if the file system has no room beside the models in use;
        an error of ``fill`` passes through and leaves nothing behind.
        """
        source = WeightSource(Manifest(model, fingerprint, layout), fill)
        name = source.manifest.file_name()
        while True:
            file = self._pin(name)
            if file is not None:
                return file
            with file_lock(self._directory / f"{name}.lock"):
                if not self._knows(name):
                    self._open(name, source)

    def pack(self, model: str, fingerprint: str, layout: WeightLayout, fill: Fill) -> None:
        """Pack a file for another worker, through ``fill``, unless it is there; errors as
        ``acquire``. It may be evicted before that worker acquires it."""
        source = WeightSource(Manifest(model, fingerprint, layout), fill)
        name = source.manifest.file_name()
        with file_lock(self._directory / f"{name}.lock"):
            fd = _complete(self._directory / name, source.manifest)
            if fd is None:
                self._pack(self._directory / name, source).close()
            else:
                os.close(fd)

    def files(self) -> list[CachedFile]:
        """Every complete file of the cache, least recently used first."""
        with self._room.lock():
            return self._room.files()

    def remove(self, model: str) -> int:
        """Delete all files of a model, whatever their fingerprint; return the bytes freed.

        ``WeightsInUse`` and no change if any worker uses one of them.
        """
        with self._room.lock():
            files = [file for file in self._room.files() if file.model == model]
            if any(file.in_use for file in files):
                raise WeightsInUse(f"the weights of {model} are in use; undeploy it first")
            for file in files:
                discard(file.path)
        self._close_evicted()
        return sum(file.nbytes for file in files)

    def close(self) -> None:
        """Unmap every file; all of them must have been released."""
        with self._mutex:
            for mapped in self._mapped.values():
                mapped.close()
            self._mapped.clear()

    def _pin(self, name: str) -> WeightFile | None:
        with self._mutex:
            mapped = self._mapped.get(name)
            return WeightFile(mapped) if mapped is not None and mapped.pin() else None

    def _knows(self, name: str) -> bool:
        with self._mutex:
            return name in self._mapped and is_linked(self._mapped[name].fd)

    def _close_evicted(self) -> None:
        with self._mutex:
            for name, mapped in list(self._mapped.items()):
                if not mapped.pinned and not is_linked(mapped.fd):
                    self._mapped.pop(name).close()

    def _open(self, name: str, source: WeightSource) -> None:
        self._close_evicted()
        path = self._directory / name
        fd = _complete(path, source.manifest)
        mapped = self._pack(path, source) if fd is None else MappedFile(path, fd, source.manifest)
        if self._pinning is not None:
            mapped.pin_to(self._pinning)
        with self._mutex:
            self._mapped[name] = mapped

    def _pack(self, path: Path, source: WeightSource) -> MappedFile:
        manifest = source.manifest
        header = manifest.encode()
        partial = path.with_suffix(".partial")
        with self._room.lock():
            self._room.make_room(manifest.model, _whole_pages(len(header), manifest.layout.nbytes))
            fd = _create(partial, manifest, header)
        try:
            mapped = MappedFile(path, fd, manifest, writable=True)
        except BaseException:
            os.close(fd)
            partial.unlink()
            raise
        try:
            source.fill(layout_views(manifest.layout, mapped.data))
            mapped.seal()
            os.pwrite(fd, header, 0)
            os.fsync(fd)
        except BaseException:
            os.ftruncate(fd, 0)
            partial.unlink()
            mapped.close()
            raise
        with self._room.lock():
            partial.rename(path)
            fcntl.flock(fd, fcntl.LOCK_UN)
        return mapped


def _whole_pages(*sizes: int) -> int:
    return sum(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for size in sizes)


def _create(partial: Path, manifest: Manifest, header: bytes) -> int:
    """Create the file with all its bytes allocated, locked so that nobody takes it for dead."""
    purpose = f"the weights of {manifest.model}"
    fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        allocate(fd, 0, len(header), partial.parent, purpose)
        allocate(fd, data_offset(header), manifest.layout.nbytes, partial.parent, purpose)
    except BaseException:
        os.close(fd)
        partial.unlink()
        raise
    return fd


def _complete(path: Path, manifest: Manifest) -> int | None:
    """Open an existing file if its header and size are right; discard it otherwise."""
    header = manifest.encode()
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    status = os.fstat(fd)
    whole = status.st_size == data_offset(header) + manifest.layout.nbytes
    if whole and os.pread(fd, len(header), 0) == header:
        return fd
    os.close(fd)
    with suppress(FileNotFoundError):
        discard(path)
    return None
