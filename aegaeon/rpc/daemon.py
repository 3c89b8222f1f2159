"""The life of a daemon: serve, tell that it is ready, wait for a reason to stop."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import NoReturn

from aegaeon.errors import AegaeonError, ConfigError
from aegaeon.rpc.lifeline import Lifeline
from aegaeon.rpc.logs import set_up_logging
from aegaeon.rpc.notify import notify

_log = logging.getLogger(__name__)
_STDERR_FD = 2


class StopSignal:
    """Set by SIGTERM or SIGINT; needs a running loop.

    SIGHUP, which asks other daemons to read their files again, ends none of these, since they do
    that by themselves; unless it says that a terminal has gone.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._event.set)
        if not sys.stdin or not sys.stdin.isatty():
            loop.add_signal_handler(signal.SIGHUP, _log.info, "SIGHUP: nothing to be read again")

    async def wait(self) -> None:
        """Return once the process was asked to stop."""
        await self._event.wait()


def announce_ready(address: str, ready_fd: int | None) -> None:
    """Tell whoever waits: one JSON line on ``ready_fd``, and READY=1 to the service manager."""
    if ready_fd is not None:
        with os.fdopen(ready_fd, "w") as pipe:
            pipe.write(json.dumps({"address": address, "pid": os.getpid()}) + "\n")
    notify("READY=1")


def run_daemon(
    main: Callable[[], Coroutine[None, None, None]],
    *,
    name: str,
    lifeline_fd: int | None,
    lifeline_folder: Path | None = None,
) -> int:
    """Run ``main`` on uvloop to its end; returns the process's exit status.

    Errors of the project's own family are one line on stderr and status 1: they say what to do.
    With ``lifeline_fd`` it ends with its parent, and then removes the parent's ``lifeline_folder``.
    """
    try:
        set_up_logging(name)
    except ConfigError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    # A watchdog's SIGABRT, and crashes in native code, tell where every thread was. They write to a
    # descriptor, which what stands in for `sys.stderr` in a test does not have.
    faulthandler.enable(_STDERR_FD)
    lifeline = None if lifeline_fd is None else Lifeline(lifeline_fd, lifeline_folder)
    try:
        import uvloop

        uvloop.run(main())
    except AegaeonError as error:
        logging.getLogger(name).critical("%s", error)
        return 1
    finally:
        if lifeline is not None:
            lifeline.clean_up()
    return 0


def leave(status: int) -> NoReturn:
    """End the process now, with what it has written flushed.

    For daemons that have given everything back: Python would take their modules apart first, which
    with torch is more than a second of work for nothing.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
