"""Settings of the daemon."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aegaeon.security.settings import PLAIN, SecuritySettings
from aegaeon_scheduler.core.config import CoreConfig


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """Frozen; `__main__` fills it from the command line."""

    #: ``host:port`` (port 0 takes a free one) or ``unix:path``.
    listen: str = "127.0.0.1:50550"
    #: Allow a TCP address that other machines can reach without TLS, or without asking who calls.
    insecure_bind: bool = False
    #: Certificates, the keys that are accepted, and the one that is shown to workers.
    security: SecuritySettings = PLAIN
    #: A worker is lost this long after its last sign of life, in ns. It finds hung processes and
    #: machines; a dead process is noticed at once, by its broken stream. Long enough for a process
    #: that gets little of a busy machine.
    lease_ttl_ns: int = 4_000_000_000
    #: Time after the start in which workers of an earlier scheduler come back, in ns. Until then
    #: what is not known to be deployed may still be: whoever asks for it waits.
    rejoin_window_ns: int = 4_000_000_000
    #: Where Prometheus metrics are served, ``host:port`` or ``unix:path``; None: nowhere.
    metrics_listen: str | None = None
    #: Time that open calls have to end once the daemon stops, in seconds.
    shutdown_grace_s: float = 2.0
    #: Where topology and deployed models are kept for the next start; None keeps them nowhere, so
    #: that a later scheduler knows only what its workers report.
    state_file: Path | None = None
    #: Where one JSON line with the address is written once the daemon serves.
    ready_fd: int | None = None
    #: Limits and targets of the policy core.
    core: CoreConfig = field(default_factory=CoreConfig)
