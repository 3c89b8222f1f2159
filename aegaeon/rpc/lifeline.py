"""A child that cannot outlive its parent.

The parent keeps the writing end of a pipe open and gives the reading end to the child; the kernel
closes the writing end however the parent ends, kill -9 included. Unlike a parent-death signal it
does not fire when merely the thread that started the child ends, and it works through a chain of
processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

#: Time that a child has for a clean stop once its parent is gone, in seconds.
GRACE_S = 10.0


class Lifeline:
    """Stops this process once the writing end of ``fd`` is closed.

    First SIGTERM to itself, for the ordinary clean stop; if that takes longer than ``GRACE_S``,
    a hard exit, so that not even a stuck kernel keeps the process alive. ``folder`` is the parent's
    own, of no use without it.
    """

    def __init__(self, fd: int, folder: Path | None) -> None:
        self._fd = fd
        self._folder = folder
        self._parent_gone = threading.Event()
        threading.Thread(target=self._wait_for_end, name="lifeline", daemon=True).start()

    def clean_up(self) -> None:
        """At the end of the process: remove what a parent that is gone could not."""
        if self._folder is not None and self._parent_gone.is_set():
            shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_for_end(self) -> None:
        while os.read(self._fd, 1):
            pass
        self._parent_gone.set()
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(GRACE_S)
        self.clean_up()
        os._exit(1)
