"""The end of a process whose device waits for a rank that is gone."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class LastResort:
    """Ends this process unless it is called off in time.

    A kernel that waits for another GPU cannot be broken off from the host, and neither can a thread
    that waits for the kernel. Whoever started the process starts another one.
    """

    def __init__(self, timeout_s: float, what: str) -> None:
        """``what`` should have happened after ``timeout_s``."""
        self._what = what
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def call_off(self) -> None:
        """It has happened. Idempotent."""
        self._timer.cancel()

    def _end(self) -> None:
        logger.critical("this process ends, because %s", self._what)
        logging.shutdown()
        os._exit(1)


@contextmanager
def within(timeout_s: float, what: str) -> Iterator[None]:
    """End the process unless the context ends in time."""
    resort = LastResort(timeout_s, what)
    try:
        yield
    finally:
        resort.call_off()
