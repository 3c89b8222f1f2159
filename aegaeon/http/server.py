"""The gateway's HTTP server, from bound socket to clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field

import uvicorn

from aegaeon.client.session import RESUME_WINDOW_S
from aegaeon.errors import ConfigError
from aegaeon.http.app import make_app
from aegaeon.http.connection import Connection
from aegaeon.http.connection_limits import ConnectionLimits, SharedLimits, shared_limits
from aegaeon.http.gateway import Gateway
from aegaeon.http.metrics import GatewayMetrics
from aegaeon.rpc.address import check_reach
from aegaeon.rpc.daemon import StopSignal, announce_ready
from aegaeon.rpc.notify import keep_watchdog, notify
from aegaeon.security.guard import Guard
from aegaeon.security.model_rules import ModelRules
from aegaeon.security.settings import PLAIN, SecuritySettings
from aegaeon.security.tls import https_context
from aegaeon.tracing import Tracing


@dataclass(frozen=True)
class GatewayConfig:
    """Settings of a gateway process."""

    #: ``host:port`` or ``unix:path``.
    scheduler: str
    host: str = "127.0.0.1"
    #: 0: any free one.
    port: int = 8000
    insecure_bind: bool = False
    #: Certificates on both sides, keys that callers must have, and the one shown to the scheduler.
    security: SecuritySettings = PLAIN
    #: Whose tokenizers may be read, and whether their code may run.
    model_rules: ModelRules = field(default_factory=ModelRules)
    #: Larger bodies are answered with 413.
    max_body_bytes: int = 32 * 1024 * 1024
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    #: Silence after which a stream gets a comment, in seconds.
    heartbeat_s: float = 15.0
    #: Time that a request waits for a scheduler that is back, in seconds.
    resume_window_s: float = RESUME_WINDOW_S
    #: Time for open requests to end, in seconds.
    shutdown_grace_s: float = 5.0
    ready_fd: int | None = None


async def serve(config: GatewayConfig) -> None:
    """Run one gateway until this process is told to stop. Raises ConfigError."""
    stop = StopSignal()
    metrics = GatewayMetrics()
    limits = shared_limits(config.connections, metrics)
    listener = _bind(config)
    security = config.security
    guard = None if security.keys_file is None else Guard(security.keys_file)
    context = https_context(security)
    gateway = Gateway(
        config.scheduler,
        config.heartbeat_s,
        config.resume_window_s,
        security,
        config.model_rules,
    )
    tracing = Tracing.from_environment("aegaeon-gateway")
    settings = uvicorn.Config(
        make_app(gateway, config.max_body_bytes, metrics, guard, tracing),
        loop="none",
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(config.shutdown_grace_s)),
    )
    server = _Server(settings, listener, context, limits)
    running = asyncio.create_task(server.serve())
    watchdog = asyncio.create_task(keep_watchdog())
    stopped = asyncio.create_task(stop.wait())
    try:
        host, port = listener.getsockname()[:2]
        # The socket takes connections already; they are served as soon as the loop is free.
        announce_ready(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", config.ready_fd)
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        notify("STOPPING=1")
        gateway.stopping.set()
        server.should_exit = True
        await running
    finally:
        for task in (watchdog, stopped):
            task.cancel()
        await gateway.close()
        listener.close()
        if tracing is not None:
            tracing.close()


class _Server(uvicorn.Server):
    """Uvicorn's, on a socket that is bound already, with our kind of connections."""

    def __init__(
        self,
        settings: uvicorn.Config,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        limits: SharedLimits,
    ) -> None:
        super().__init__(settings)
        self._listener = listener
        self._context = context
        self._limits = limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets=[])
        tls = self._context is not None
        server = await asyncio.get_running_loop().create_server(
            self._connection,
            sock=self._listener,
            backlog=self.config.backlog,
            ssl=self._context,
            ssl_handshake_timeout=self._limits.settings.head_timeout_s if tls else None,
        )
        self.servers.append(server)

    def _connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state, self._limits)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the daemon's own."""
        yield


def _bind(config: GatewayConfig) -> socket.socket:
    host = f"[{config.host}]" if ":" in config.host else config.host
    security = config.security
    check_reach(
        f"{host}:{config.port}",
        config.insecure_bind,
        encrypted=security.https_cert is not None,
        closed=security.keys_file is not None or security.https_client_ca is not None,
    )
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listener = socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{config.port}: {error}") from error
    listener.setblocking(False)
    return listener
