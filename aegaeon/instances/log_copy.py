"""Logs of daemons: copied on, and kept from growing without end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

#: A log that has grown to this size begins anew; the part before it stays beside it, as ``.1``.
MAX_LOG_BYTES = 64 * 1024 * 1024
_CHUNK = 1 << 20


class LogCopy:
    """Copies what is new in the ``*.log`` files of a folder to ``out``, if there is one."""

    def __init__(self, folder: Path, out: BinaryIO | None, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._folder, self._out, self._max_bytes = folder, out, max_bytes
        self._read: dict[Path, int] = {}

    def turn(self) -> None:
        """Look once."""
        for path in sorted(self._folder.glob("*.log")):
            size = path.stat().st_size
            if self._out is not None:
                self._copy(path, size, self._out)
            if size > self._max_bytes:
                self._begin_anew(path)

    def _copy(self, path: Path, size: int, out: BinaryIO) -> None:
        begin = self._read.get(path, 0)
        if size <= begin:
            return
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read(min(size - begin, _CHUNK))
        # Whole lines, so that those of several daemons do not mix.
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) == _CHUNK else 0)
        out.write(data[:end])
        out.flush()
        self._read[path] = begin + end

    def _begin_anew(self, path: Path) -> None:
        # Daemons append, so that they go on at the new end. What one writes between the copy and
        # the cut is lost, which is a few lines at most.
        with path.open("rb") as old, path.with_suffix(".log.1").open("wb") as kept:
            while chunk := old.read(_CHUNK):
                kept.write(chunk)
        os.truncate(path, 0)
        self._read[path] = 0
