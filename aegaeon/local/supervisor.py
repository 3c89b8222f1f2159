"""Starts daemons again that have died."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from aegaeon.errors import AegaeonError, UnavailableError
from aegaeon.local.child import Child

_log = logging.getLogger(__name__)

#: How often the daemons are looked at, in seconds.
_LOOK_S = 0.1
#: Restarts are counted over this time, in seconds.
WINDOW_S = 60.0
_REMEMBERED_DEATHS = 8


class Supervisor:
    """Watches ``children`` and replaces each that has died, up to ``limit`` times a minute.

    One that dies more often has a reason that a restart does not remove: it stays dead, and
    `given_up` names it. Owns the list until `stop`.
    """

    def __init__(self, children: list[Child], limit: int) -> None:
        self._children = children
        self._limit = limit
        self._restarts: list[deque[float]] = [deque(maxlen=limit) for _ in children]
        self._given_up: dict[int, UnavailableError] = {}
        self._deaths: deque[UnavailableError] = deque(maxlen=_REMEMBERED_DEATHS)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aegaeon-supervisor", daemon=True)
        self._thread.start()

    def given_up(self) -> dict[int, UnavailableError]:
        """By position, the last death of each daemon that is not started again."""
        return dict(self._given_up)

    def deaths(self) -> list[UnavailableError]:
        """The latest deaths, each with the daemon's last output."""
        return list(self._deaths)

    def stop(self) -> None:
        """Start nothing any more; the children are the caller's again. Idempotent."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            for position, child in enumerate(self._children):
                if position in self._given_up:
                    continue
                try:
                    child.check()
                except UnavailableError as death:
                    self._replace(position, child, death)

    def _replace(self, position: int, child: Child, death: UnavailableError) -> None:
        self._deaths.append(death)
        restarts, now = self._restarts[position], time.monotonic()
        if not self._limit or (len(restarts) == self._limit and now - restarts[0] < WINDOW_S):
            _log.error("%s; it is not started again", death)
            self._given_up[position] = death
            return
        _log.warning("%s; it is started again", death)
        restarts.append(now)
        child.stop(now)
        try:
            self._children[position] = child.again()
        except AegaeonError as error:
            _log.error("%s", error)
            self._given_up[position] = death
