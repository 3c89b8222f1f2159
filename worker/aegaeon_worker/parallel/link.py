"""A connection between rank 0 and another rank of its engine, by a unix socket.

A socket and no ring in shared memory: a rank that waits sleeps in the kernel instead of looking,
one that dies is noticed at once, because the kernel closes its end, and a frame costs a few
microseconds, which is little beside a step.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import threading
from pathlib import Path

from aegaeon_worker.parallel.errors import GroupBroken
from aegaeon_worker.parallel.frames import HEADER, Frame, Kind
from aegaeon_worker.socket_path import socket_path

_TIMEVAL = struct.Struct("ll")
_CREDENTIALS = struct.Struct("3i")


class Link:
    """One end. Any thread may send, one thread receives."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        """A frame that the other end does not take for ``timeout_s`` breaks the link."""
        self._socket = connection
        self._timeout_s = timeout_s
        seconds = int(timeout_s)
        limit = _TIMEVAL.pack(seconds, int((timeout_s - seconds) * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        self.pid: int = _CREDENTIALS.unpack(credentials)[0]
        """The process at the other end."""
        self._process = _open_process(self.pid)
        self._sending = threading.Lock()

    def send(self, frame: bytes) -> None:
        """Send a frame; ``GroupBroken`` if the other end is gone or does not read."""
        try:
            with self._sending:
                self._socket.sendall(frame)
        except BlockingIOError:
            raise GroupBroken(
                f"process {self.pid} has read nothing for {self._timeout_s:g} s"
            ) from None
        except OSError as error:
            raise GroupBroken(f"process {self.pid} is gone: {error}") from error

    def receive(self) -> Frame | None:
        """Wait for the next frame; none once the other end has closed or died."""
        header = self._read(HEADER.size)
        if header is None:
            return None
        kind, length = HEADER.unpack(header)
        body = self._read(length)
        return None if body is None else Frame(Kind(kind), body)

    def readable(self, timeout_s: float) -> bool:
        """Whether ``receive`` has something within ``timeout_s``, if only an end."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    @property
    def alive(self) -> bool:
        """Whether the other end is still there; what it sent stays to be received."""
        if not self.readable(0):
            return True
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def finish(self) -> None:
        """Send nothing any more: the other end reads to here, ends, and closes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def interrupt(self) -> None:
        """Let a thread that waits in ``receive`` return none."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End the process at the other end, which does not answer, and wait for its end."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            select.select([self._process], [], [], self._timeout_s)

    def close(self) -> None:
        """Give the connection up."""
        self._socket.close()
        if self._process is not None:
            os.close(self._process)
            self._process = None

    def _read(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            try:
                piece = self._socket.recv(count - len(data))
            except OSError:
                return None
            if not piece:
                return None
            data += piece
        return bytes(data)


def _open_process(pid: int) -> int | None:
    """A handle that cannot come to mean another process; none for one in another namespace."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def connect(path: Path, timeout_s: float) -> Link | None:
    """Connect to rank 0 at ``path``; none if it is not there."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with socket_path(path) as name:
            connection.connect(name)
        return Link(connection, timeout_s)
    except OSError:
        connection.close()
        return None
