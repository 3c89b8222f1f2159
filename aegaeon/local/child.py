"""One daemon as a child process: ready hand-shake, lifeline, log, clean end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from aegaeon.errors import AegaeonError, ErrorReason, UnavailableError
from aegaeon.security.settings import without_security

#: Time that a daemon has for a clean stop before it is killed, in seconds.
STOP_GRACE_S = 15.0
_LOG_TAIL_LINES = 15


class Child:
    """A started daemon. ``command`` gets the flags of lifeline and ready descriptor appended.

    The child writes one JSON line ``{"address": ...}`` to its ready descriptor when it serves, and
    stops when its lifeline ends, see `aegaeon.rpc.lifeline`. Its output goes to ``log``. It removes
    ``folder``, by default that of the log, when this process ends without doing so. By default it
    has our ``environment`` without certificates and keys, which are for other services.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._command = command
        self.log = log
        self._folder = folder
        lifeline_read, self._lifeline = os.pipe()
        self._ready, ready_write = os.pipe()
        self._received = b""
        flags = [
            "--lifeline-fd",
            str(lifeline_read),
            "--lifeline-folder",
            str(folder or log.parent),
        ]
        flags += ["--ready-fd", str(ready_write)]
        try:
            with log.open("ab") as output:
                # Own process group: a terminal's Ctrl-C is the client's to handle, which cancels
                # requests first. No preexec_fn, so that Python starts it by vfork, never by fork
                # of a process that has gRPC threads.
                self._process = subprocess.Popen(
                    [*command, *flags],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(lifeline_read, ready_write),
                    env=without_security(os.environ) if environment is None else environment,
                    process_group=0,
                )
        except OSError as error:
            self._close_pipes()
            raise AegaeonError(f"{name} cannot be started: {error}") from error
        finally:
            os.close(lifeline_read)
            os.close(ready_write)

    def again(self) -> Child:
        """Start the same daemon anew; this one has been stopped."""
        return Child(self.name, self._command, self.log, self._folder)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def poll_ready(self, timeout_s: float) -> str | None:
        """The address that it serves at; None when it is not ready yet. Raises when it died."""
        readable, _, _ = select.select([self._ready], [], [], timeout_s)
        if readable:
            data = os.read(self._ready, 4096)
            self._received += data
            if not data:
                self._process.wait(timeout=STOP_GRACE_S)
        self.check()
        if not self._received.endswith(b"\n"):
            return None
        return str(json.loads(self._received)["address"])

    def check(self) -> None:
        """Raise UnavailableError when it has ended, with its exit status and its last words."""
        status = self._process.poll()
        if status is not None:
            raise UnavailableError(
                f"{self.name} (process {self.pid}) {_describe_exit(status)}; its last output:\n"
                f"{self.log_tail()}",
                reason=ErrorReason.WORKER_LOST,
            )

    def log_tail(self) -> str:
        """The last lines of its output."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "(no log)"
        lines = text.rstrip().splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join(f"  {line}" for line in lines) or "  (nothing)"

    def ask_to_stop(self) -> None:
        """Begin its clean stop."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def stop(self, deadline: float) -> None:
        """Wait for its end until ``deadline`` (monotonic), then kill it. Idempotent."""
        try:
            self._process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for fd in (self._lifeline, self._ready):
            if fd >= 0:
                os.close(fd)
        self._lifeline = self._ready = -1


def _describe_exit(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
