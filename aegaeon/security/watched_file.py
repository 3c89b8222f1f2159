"""A file that is read again when it changes, so that nothing restarts for a rotated secret."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from aegaeon.errors import ConfigError

T = TypeVar("T")

_log = logging.getLogger(__name__)

_Signature = tuple[int, int, int]


class WatchedFile(Generic[T]):
    """What ``parse`` makes of a file's bytes; `get` looks whether the file has changed.

    The first reading raises ConfigError. Later on, a file that is gone or wrong is reported in the
    log, once per change, and what was read before stays in force: a rotation that goes wrong must
    not lock everybody out, nor let anybody in. May be used from any thread.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], T]) -> None:
        self.path = path
        self._parse = parse
        self._lock = threading.Lock()
        self._seen = _signature(path)
        self._value = self._read()

    def get(self) -> T:
        """The contents now."""
        signature = _signature(self.path)
        if signature != self._seen:
            with self._lock:
                self._refresh(signature)
        return self._value

    def _refresh(self, signature: _Signature | None) -> None:
        if signature == self._seen:
            return
        self._seen = signature
        try:
            self._value = self._read()
        except ConfigError as error:
            _log.error("%s; what it said before stays in force", error)
        else:
            _log.info("%s has changed and was read again", self.path)

    def _read(self) -> T:
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from error
        return self._parse(content)


def _signature(path: Path) -> _Signature | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
