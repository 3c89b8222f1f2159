"""Another worker of the node, from whose device this one reads."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from aegaeon.errors import AegaeonError
from aegaeon_worker.device.sharing import PeerMemory
from aegaeon_worker.kv.pull import Pull
from aegaeon_worker.peers import packets
from aegaeon_worker.socket_path import socket_path

logger = logging.getLogger(__name__)

#: A question that is not answered for so long will not be, in seconds.
_ANSWER_S = 5.0
_LOOK_S = 0.5


@dataclass(frozen=True)
class PullAnswered:
    """What a pull waited for is there, unless there was a problem; look at its offer again.

    With ``gone``, the other worker has ended.
    """

    pull: Pull
    problem: str = ""
    gone: bool = False


@dataclass(frozen=True)
class LenderGone:
    """Another worker has ended; its memory lives until it is given up here."""

    lender: Lender


@dataclass
class _Wait:
    missing: set[int]
    deadline: float


class Lender:
    """Asks for chunks and maps them on a thread of its own, once for the life of the other worker.

    The engine's thread asks and closes; answers are posted to it.
    """

    def __init__(
        self,
        path: Path,
        memory: Callable[[], PeerMemory],
        post: Callable[[PullAnswered | LenderGone], None],
    ) -> None:
        """Connect to the socket at ``path``; ``OSError`` if nobody is there."""
        self._post = post
        self._mutex = threading.Lock()
        self._waits: dict[Pull, _Wait] = {}
        self._asked: set[int] = set()
        self._saves: dict[Pull, int] = {}
        self._closed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(_LOOK_S)
            with socket_path(path) as name:
                self._socket.connect(name)
            self.memory = memory()
        except BaseException:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._read, name="chunk borrower", daemon=True)
        self._thread.start()

    def bring(self, pull: Pull, chunks: Iterable[int]) -> bool:
        """Whether the chunks are mapped; if not, an answer is to follow."""
        with self._mutex:
            missing = set(self.memory.missing(chunks))
            if not missing:
                return True
            self._waits[pull] = _Wait(missing, time.monotonic() + _ANSWER_S)
            fresh = sorted(missing - self._asked)
            self._asked |= missing
        for first in range(0, len(fresh), packets.MOST_CHUNKS):
            self._send(packets.Kind.CHUNKS, fresh[first : first + packets.MOST_CHUNKS])
        return False

    def save(self, pull: Pull) -> None:
        """Have an offer brought to the slabs; an answer is to follow."""
        with self._mutex:
            self._saves[pull] = number = int(pull.offer.rpartition("/")[2])
            self._waits[pull] = _Wait(set(), time.monotonic() + _ANSWER_S)
        self._send(packets.Kind.SAVE, [number])

    def close(self) -> None:
        """Give the connection and the memory up; no pull from it may be under way."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        self.memory.close()

    def _send(self, kind: packets.Kind, numbers: list[int]) -> None:
        with contextlib.suppress(OSError):  # who is gone is noticed by the thread that reads
            self._socket.send(packets.pack(kind, numbers))

    def _read(self) -> None:
        while True:
            try:
                packet, descriptors, _, _ = socket.recv_fds(
                    self._socket, packets.MAX_NBYTES, packets.MOST_CHUNKS
                )
            except TimeoutError:
                self._expire()
                continue
            except OSError:
                break
            if not packet:
                break
            try:
                self._take(packet, descriptors)
            except ValueError as error:
                logger.warning("another worker answers with nonsense: %s", error)
                break
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        with self._mutex:
            lost = list(self._waits)
            self._waits.clear()
        if not self._closed:
            for pull in lost:
                self._post(PullAnswered(pull, "the other worker has ended", gone=True))
            self._post(LenderGone(self))

    def _take(self, packet: bytes, descriptors: list[int]) -> None:
        kind, numbers = packets.unpack(packet)
        if kind is packets.Kind.SAVE:
            self._answer([pull for pull, number in self._saves.items() if [number] == numbers])
            return
        if kind is packets.Kind.REFUSED:
            self._refuse(numbers, packets.text_of(packet))
            return
        for chunk, descriptor in zip(numbers, descriptors, strict=False):
            try:
                self.memory.add(chunk, descriptor)
            except AegaeonError as error:
                self._refuse(numbers, str(error))
                return
        if len(descriptors) < len(numbers):
            self._refuse(numbers[len(descriptors) :], "this process has no file descriptors left")
        with self._mutex:
            self._asked.difference_update(numbers)
            for wait in self._waits.values():
                wait.missing.difference_update(numbers)
            there = [p for p, w in self._waits.items() if not w.missing and p not in self._saves]
        self._answer(there)

    def _answer(self, pulls: list[Pull], problem: str = "") -> None:
        for pull in pulls:
            with self._mutex:
                self._saves.pop(pull, None)
                waits = self._waits.pop(pull, None)
            if waits is not None:
                self._post(PullAnswered(pull, problem))

    def _refuse(self, chunks: list[int], reason: str) -> None:
        with self._mutex:
            self._asked.difference_update(chunks)
            hit = [p for p, wait in self._waits.items() if wait.missing.intersection(chunks)]
        self._answer(hit, reason)

    def _expire(self) -> None:
        now = time.monotonic()
        with self._mutex:
            late = [pull for pull, wait in self._waits.items() if wait.deadline < now]
            self._asked.clear()
        if late:
            self._answer(late, f"the other worker has not answered for {_ANSWER_S:.0f} s")
