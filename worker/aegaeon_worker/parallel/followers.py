"""The other ranks as rank 0 sees them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from aegaeon.errors import EngineError
from aegaeon_worker.parallel.errors import GroupBroken
from aegaeon_worker.parallel.frames import Frame, Kind, number_frame
from aegaeon_worker.parallel.last_resort import LastResort
from aegaeon_worker.parallel.link import Link

logger = logging.getLogger(__name__)

#: Told about a model that a rank has prepared, or why it has not: rank, model, error.
TellPrepared = Callable[[int, str, EngineError | None], None]


class Followers:
    """Sends frames to all other ranks of one group and knows how far each has come.

    Frames are sent by one thread; a thread per rank waits for answers.
    """

    def __init__(
        self,
        links: Mapping[int, Link],
        timeout_s: float,
        tell_lost: Callable[[str], None],
        tell_prepared: TellPrepared,
    ) -> None:
        """``tell_lost`` hears once why the group cannot go on; both are called on other threads."""
        self._links = dict(links)
        self._timeout_s = timeout_s
        self._tell_lost = tell_lost
        self._tell_prepared = tell_prepared
        self._changed = threading.Condition()
        self._reached = dict.fromkeys(links, 0)
        self._formed: set[int] = set()
        self._lost = ""
        self._marks = 0
        self._closing = False
        self._resort: LastResort | None = None
        self._listeners = {
            rank: threading.Thread(
                target=self._listen, args=(rank, link), name=f"rank {rank}", daemon=True
            )
            for rank, link in self._links.items()
        }
        for listener in self._listeners.values():
            listener.start()

    @property
    def closed(self) -> bool:
        """Nothing is sent any more."""
        return self._closing

    def send(self, frame: bytes) -> None:
        """Send a frame to every rank; ``GroupBroken`` if one is gone."""
        if self._lost:
            raise GroupBroken(self._lost)
        for rank, link in self._links.items():
            try:
                link.send(frame)
            except GroupBroken as error:
                raise GroupBroken(f"rank {rank}: {error}") from error

    def mark(self, lane: int) -> int:
        """Let every rank tell when its copies of a lane up to here are complete."""
        self._marks += 1
        self.send(number_frame(Kind.MARK, [lane, self._marks]))
        return self._marks

    def reached(self, mark: int) -> bool:
        """Whether all ranks have; never blocks."""
        return self._closing or min(self._reached.values()) >= mark

    def wait(self, mark: int) -> None:
        """Wait until all ranks have; ``GroupBroken`` if one does not in time."""
        self._wait(lambda: self.reached(mark), f"mark {mark}")

    def wait_formed(self) -> None:
        """Wait until all ranks are connected to each other."""
        self._wait(lambda: self._formed == self._links.keys(), "its place in the group")

    def close(self) -> None:
        """Let the ranks end what they were told, and give them up.

        When this returns none of them touches this worker's host memory any more: one that does
        not end in time is killed.
        """
        self._closing = True
        if self._resort is not None:
            self._resort.call_off()
        deadline = time.monotonic() + self._timeout_s
        for link in self._links.values():
            link.finish()
        for rank, listener in self._listeners.items():
            listener.join(max(0.0, deadline - time.monotonic()))
            link = self._links[rank]
            if listener.is_alive():
                logger.error("rank %d (process %d) hangs and is killed", rank, link.pid)
                link.kill()
                link.interrupt()
                listener.join()
            link.close()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: self._lost or condition(), self._timeout_s)
            if self._lost:
                raise GroupBroken(self._lost)
        if not done:
            raise GroupBroken(f"not all ranks have reached {what} within {self._timeout_s:g} s")

    def _listen(self, rank: int, link: Link) -> None:
        while (frame := link.receive()) is not None:
            self._take(rank, link, frame)
        if not self._closing:
            self._lose(f"rank {rank} (process {link.pid}) is gone")

    def _take(self, rank: int, link: Link, frame: Frame) -> None:
        if frame.kind is Kind.FAILED:
            self._lose(f"rank {rank} (process {link.pid}) failed: {frame.fields()['reason']}")
        elif frame.kind is Kind.PREPARED:
            fields = frame.fields()
            error = EngineError(f"rank {rank}: {fields['error']}") if fields["error"] else None
            self._tell_prepared(rank, fields["model"], error)
        else:
            with self._changed:
                if frame.kind is Kind.REACHED:
                    self._reached[rank] = frame.numbers()[0]
                elif frame.kind is Kind.FORMED:
                    self._formed.add(rank)
                self._changed.notify_all()

    def _lose(self, reason: str) -> None:
        with self._changed:
            first, self._lost = not self._lost, self._lost or reason
            self._changed.notify_all()
        if first and not self._closing:
            # A step that is under way ends by itself, unless a device waits for the lost rank.
            self._resort = LastResort(2 * self._timeout_s, f"a step hangs after {reason}")
            self._tell_lost(reason)
