"""A rank other than 0: does what it is told, and finds rank 0 again when it is lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

from aegaeon_worker.engine.events import MemoryUsage
from aegaeon_worker.engine.status import EngineStatus
from aegaeon_worker.parallel.communicator import Communicator
from aegaeon_worker.parallel.errors import GroupBroken
from aegaeon_worker.parallel.frames import Frame, Kind, object_frame
from aegaeon_worker.parallel.link import Link, connect
from aegaeon_worker.parallel.settings import GroupSettings
from aegaeon_worker.parallel.share import RankShare

logger = logging.getLogger(__name__)

_RETRY_S = 0.1
#: How often to look whether copies are complete that rank 0 waits for, in seconds.
_MARK_LOOK_S = 0.0005
_REFUSED_RETRY_S = 5.0


class Follower:
    """Runs one rank on a thread of its own, which sleeps while rank 0 has nothing to do."""

    def __init__(
        self,
        meeting: Path,
        settings: GroupSettings,
        communicator: Communicator,
        make_share: Callable[[Link], RankShare],
        usage: Callable[[], MemoryUsage],
        timeout_s: float,
    ) -> None:
        """``make_share`` makes what this rank holds for one group."""
        self._meeting = meeting
        self._settings = settings
        self._communicator = communicator
        self._make_share = make_share
        self._usage = usage
        self._timeout_s = timeout_s
        self._stopping = threading.Event()
        self._link: Link | None = None
        self._broken: Future[BaseException] = Future()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def status(self) -> EngineStatus:
        """This rank's memory; rank 0 knows the models."""
        return EngineStatus(self._usage(), (), "")

    def start(self) -> None:
        """Begin to look for rank 0."""
        self._thread.start()

    def stop(self) -> None:
        """Leave the group after the frame under way, and wait for that."""
        self._stopping.set()
        if (link := self._link) is not None:
            link.interrupt()
        if self._thread.ident is not None:
            self._thread.join()

    async def wait_broken(self) -> BaseException:
        """Return when this process is of no more use; never after an ordinary stop."""
        return await asyncio.wrap_future(self._broken)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                link = connect(self._meeting, self._timeout_s)
                pause_s = _RETRY_S if link is None else self._follow(link)
                self._stopping.wait(pause_s)
        except BaseException as error:
            logger.exception("this rank broke")
            self._broken.set_result(error)

    def _follow(self, link: Link) -> float:
        """One group from hello to its end; returns how long to wait before the next."""
        self._link = link
        if self._stopping.is_set():  # asked between the look at it and now
            link.interrupt()
        pause_s = _RETRY_S
        with ExitStack() as stack:
            # The link goes last: its end tells rank 0 that nothing here touches host memory.
            stack.callback(link.close)
            stack.callback(setattr, self, "_link", None)
            stack.callback(self._communicator.disconnect)
            share = stack.enter_context(self._make_share(link))
            if not self._communicator.recorded:
                # Before all else, so that ranks in the middle of a collective come out of it.
                stack.callback(self._communicator.disconnect)
            try:
                rank = self._communicator.ranks.rank
                link.send(object_frame(Kind.HELLO, rank=rank, **self._settings.fields()))
                while (frame := self._next(link, share)) is not None:
                    if frame.kind is Kind.REFUSE:
                        logger.error("rank 0 refuses this rank: %s", frame.fields()["reason"])
                        pause_s = _REFUSED_RETRY_S
                    elif frame.kind is Kind.FORM:
                        self._form(link, share, frame)
                    else:
                        share.take(frame)
            except GroupBroken as error:
                logger.error("this rank leaves its group: %s", error)
                self._tell_failed(link, str(error))
            else:
                logger.info("the group has ended")
        return pause_s

    @staticmethod
    def _next(link: Link, share: RankShare) -> Frame | None:
        """The next frame; marks are told as they are passed meanwhile."""
        while share.tell_reached():
            if link.readable(_MARK_LOOK_S):
                break
        return link.receive()

    def _form(self, link: Link, share: RankShare, frame: Frame) -> None:
        fields = frame.fields()
        share.restrict(fields["num_chunks"])
        self._communicator.connect(self._meeting.parent / fields["meeting"])
        link.send(object_frame(Kind.FORMED))

    @staticmethod
    def _tell_failed(link: Link, reason: str) -> None:
        try:
            link.send(object_frame(Kind.FAILED, reason=reason))
        except GroupBroken:
            logger.info("rank 0 is gone as well")
