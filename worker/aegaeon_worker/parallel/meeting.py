"""Where the other ranks of an engine find rank 0."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aegaeon_worker.parallel.frames import Frame, Kind, object_frame
from aegaeon_worker.parallel.link import Link
from aegaeon_worker.parallel.settings import GroupSettings
from aegaeon_worker.socket_path import socket_path

logger = logging.getLogger(__name__)

#: Time that a rank has to say hello once it has connected, in seconds.
_HELLO_S = 5.0


@dataclass(frozen=True)
class Assembled:
    """All other ranks have come: their links, and the chunks that every rank's pool has."""

    links: Mapping[int, Link]
    num_chunks: int


def meeting_path(folder: Path, leader_index: int) -> Path:
    """Rank 0's socket in its instance's folder; ``leader_index`` is its worker index."""
    return folder / f"ranks-of-{leader_index}"


class MeetingPlace:
    """Accepts the other ranks on a thread of its own; tells when all of them are there.

    A rank that connects again takes its own earlier place. A group once told is the hearer's.
    """

    def __init__(
        self,
        path: Path,
        settings: GroupSettings,
        timeout_s: float,
        tell: Callable[[Assembled], None],
    ) -> None:
        self._path = path
        self._settings = settings
        self._timeout_s = timeout_s
        self._tell = tell
        self._waiting: dict[int, tuple[Link, GroupSettings]] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)
        with socket_path(path) as name:
            self._listener.bind(name)
        self._listener.listen(settings.size)
        self._thread = threading.Thread(target=self._accept, name="meeting", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept nobody any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for link, _ in self._waiting.values():
            link.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(_HELLO_S)
            link = Link(connection, self._timeout_s)
            hello = link.receive()
            connection.settimeout(None)
            if hello is None or hello.kind is not Kind.HELLO or not self._admit(link, hello):
                link.close()
            else:
                self._assemble()

    def _admit(self, link: Link, hello: Frame) -> bool:
        fields = hello.fields()
        rank = int(fields.pop("rank"))
        settings = GroupSettings(**fields)
        difference = self._settings.difference(settings)
        if difference or not 0 < rank < self._settings.size:
            reason = difference or f"rank {rank} is not one of {self._settings.size}"
            logger.error("rank %d (process %d) cannot join: %s", rank, link.pid, reason)
            link.send(object_frame(Kind.REFUSE, reason=reason))
            return False
        if rank in self._waiting:
            self._waiting.pop(rank)[0].close()
        self._waiting[rank] = (link, settings)
        logger.info("rank %d (process %d) is here", rank, link.pid)
        return True

    def _assemble(self) -> None:
        for rank, (link, _) in list(self._waiting.items()):
            if not link.alive:
                link.close()
                del self._waiting[rank]
        if len(self._waiting) == self._settings.size - 1:
            chunks = [settings.max_chunks for _, settings in self._waiting.values()]
            links = {rank: link for rank, (link, _) in self._waiting.items()}
            self._waiting.clear()
            self._tell(Assembled(links, min(self._settings.max_chunks, *chunks)))
