"""What all connections of a gateway may take, of time and of places."""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass

from aegaeon.errors import ConfigError
from aegaeon.http.metrics import GatewayMetrics
from aegaeon.http.open_connections import OpenConnections

_log = logging.getLogger(__name__)

#: Files of the process besides its callers' connections.
_OWN_FILES = 128


@dataclass(frozen=True)
class ConnectionLimits:
    """Settings; times in seconds."""

    #: Connections at once. Fewer if the process may not open as many files.
    max_connections: int = 4096
    #: Of one address, or of one IPv6 network of 64 bits; 0: half of the connections.
    max_connections_per_address: int = 0
    #: From the beginning of a connection or of a later request to the end of the headers.
    head_timeout_s: float = 30.0
    #: For a body, and one more for every `MIN_BODY_BYTES_PER_S` of it.
    body_timeout_s: float = 30.0
    #: Between an answer and the next request.
    keep_alive_s: float = 5.0
    #: For a caller to take some of what waits for it.
    write_timeout_s: float = 60.0


@dataclass(frozen=True)
class SharedLimits:
    """The settings in force, and what counts against them."""

    settings: ConnectionLimits
    open: OpenConnections
    metrics: GatewayMetrics


def shared_limits(settings: ConnectionLimits, metrics: GatewayMetrics) -> SharedLimits:
    """Make room for as many connections as are asked for, or for as many as there can be.

    Raises ConfigError for more of one address than in all.
    """
    most = min(settings.max_connections, _open_files(settings.max_connections + _OWN_FILES))
    per_address = settings.max_connections_per_address or max(1, settings.max_connections // 2)
    if per_address > settings.max_connections:
        raise ConfigError(
            f"--max-connections-per-address {per_address} is more than --max-connections "
            f"({settings.max_connections}); lower the first or raise the second"
        )
    if most < settings.max_connections:
        _log.warning(
            "at most %d connections instead of %d: the process may not open more files; raise its "
            "limit (ulimit -n, LimitNOFILE= in the unit)",
            *(most, settings.max_connections),
        )
    connections = OpenConnections(most, min(per_address, most))
    metrics.connections.set_function(connections.__len__)
    return SharedLimits(settings, connections, metrics)


def _open_files(wanted: int) -> int:
    """Files for connections, after raising this process's limit as far as may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < wanted:
        soft = wanted if hard == unlimited else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == unlimited else max(1, soft - _OWN_FILES)
