"""A child that cannot outlive its parent.

The parent keeps the writing end of a pipe open and gives the reading end to the child; the kernel
closes the writing end however the parent ends, kill -9 included. Unlike a parent-death signal it
does not fire when merely the thread that started the child ends, and it works through a chain of
processes.
"""

from __future__ import annotations

import os
import signal
import threading

#: Time that a child has for a clean stop once its parent is gone, in seconds.
GRACE_S = 10.0


def watch_lifeline(fd: int) -> None:
    """Stop this process once the writing end of ``fd`` is closed.

    First SIGTERM to itself, for the ordinary clean stop; if that takes longer than ``GRACE_S``,
    exit hard, so that not even a stuck kernel keeps the process alive.
    """
    threading.Thread(target=_wait_for_end, args=(fd,), name="lifeline", daemon=True).start()


def _wait_for_end(fd: int) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os._exit(1)
