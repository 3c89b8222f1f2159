"""Lends the chunks of a device to other workers of the node."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from aegaeon.errors import AegaeonError
from aegaeon_worker.peers import packets
from aegaeon_worker.socket_path import socket_path

logger = logging.getLogger(__name__)

Save = Callable[[int, Callable[[], None]], None]
"""Begins to bring an offer to the slabs, from any thread; its second argument is called when the
offer's file says where it is, or is gone."""


class ChunkServer:
    """Accepts other workers at a socket, on threads of its own.

    Each request is a packet: chunks, of which descriptors come back, or an offer that is to be
    brought to the slabs, because the other one cannot use it where it is. A connection that closes
    tells the other side that this process has ended.
    """

    def __init__(self, path: Path, export: Callable[[int], int], save: Save) -> None:
        self._path = path
        self._export = export
        self._save = save
        self._connections: set[socket.socket] = set()
        self._mutex = threading.Lock()
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with socket_path(path) as name:
            self._listener.bind(name)
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, name="chunk server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Lend nothing any more; what has been lent stays readable."""
        with self._mutex:
            self._closed = True
            connections = list(self._connections)
        for end in (self._listener, *connections):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        threads: list[threading.Thread] = []
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            with self._mutex:
                if self._closed:
                    connection.close()
                    break
                self._connections.add(connection)
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="chunk lender", daemon=True
            )
            threads = [other for other in threads if other.is_alive()]
            threads.append(thread)
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            while request := connection.recv(packets.MAX_NBYTES):
                kind, numbers = packets.unpack(request)
                if kind is packets.Kind.CHUNKS:
                    self._lend(connection, numbers)
                elif kind is packets.Kind.SAVE and len(numbers) == 1:
                    self._save(numbers[0], _answer(connection, numbers))
        with self._mutex:
            self._connections.discard(connection)

    def _lend(self, connection: socket.socket, chunks: list[int]) -> None:
        descriptors: list[int] = []
        try:
            for chunk in chunks[: packets.MOST_CHUNKS]:
                descriptors.append(self._export(chunk))
            answer = packets.pack(packets.Kind.CHUNKS, chunks[: packets.MOST_CHUNKS])
            socket.send_fds(connection, [answer], descriptors)
        except (AegaeonError, LookupError) as error:
            logger.warning("cannot lend device memory to another worker: %s", error)
            connection.send(packets.pack(packets.Kind.REFUSED, chunks, str(error)))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _answer(connection: socket.socket, numbers: list[int]) -> Callable[[], None]:
    def answer() -> None:
        # From the engine's thread: it never waits for who does not read.
        with contextlib.suppress(OSError):
            connection.send(packets.pack(packets.Kind.SAVE, numbers), socket.MSG_DONTWAIT)

    return answer
