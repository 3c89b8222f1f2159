"""What a starter of daemons may say beside their nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def _ignore(name: str, serves: bool) -> None:
    """Nobody watches."""


def _wait_on() -> None:
    """Nobody wants to end it."""


@dataclass(frozen=True)
class LocalSetup:
    """By default the daemons are their starter's own: sockets and logs in a private folder."""

    #: Where the scheduler listens; None is a socket in the private folder.
    listen: str | None = None
    #: It may be reachable from other machines.
    insecure_bind: bool = False
    #: Port on loopback of the scheduler's metrics; those of workers follow. None: no metrics.
    metrics_port: int | None = None
    #: Flags of a gateway in front of the scheduler; None starts none.
    gateway_flags: tuple[str, ...] | None = None
    #: An existing folder for the logs, which stay there; None is the private folder.
    log_dir: Path | None = None
    #: Called with a daemon's name when it is started, and again when it serves.
    on_step: Callable[[str, bool], None] = _ignore
    #: Called several times a second while a daemon is waited for; what it raises ends the start.
    on_wait: Callable[[], None] = _wait_on
