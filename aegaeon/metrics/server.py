"""GET /metrics for daemons that speak gRPC otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from aegaeon.errors import ConfigError, PermissionDeniedError, UnauthenticatedError
from aegaeon.metrics.registry import CONTENT_TYPE
from aegaeon.rpc.address import check_reach, clear_stale_socket, private_files
from aegaeon.security.guard import Guard
from aegaeon.security.keys import Scope
from aegaeon.security.settings import PLAIN, SecuritySettings
from aegaeon.security.tls import asks_certificates, metrics_context

_log = logging.getLogger(__name__)

#: A scraper sends its request within this time, in seconds, or is cut off.
_REQUEST_S = 5.0
_MAX_HEAD_BYTES = 16 * 1024


class MetricsServer:
    """Serves a registry over HTTP on ``host:port`` or ``unix:path``. Belongs to one event loop.

    ``refresh`` is called on the loop ahead of every answer, to set what is only looked at then; the
    text is made on a thread, so that hundreds of models hold nobody up.
    """

    def __init__(self, registry: CollectorRegistry, refresh: Callable[[], None]) -> None:
        self._registry, self._refresh = registry, refresh
        self._guard: Guard | None = None
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def start(
        self, listen: str, *, insecure_bind: bool = False, settings: SecuritySettings = PLAIN
    ) -> str:
        """Serve; returns the address with the real port. TCP is encrypted where the daemon has a
        certificate; scrapers need a key for OBSERVE where it has a file of keys. Raises
        ConfigError, also for an address beyond loopback without both, as for the daemon's own."""
        keys = settings.keys_file
        self._guard = None if keys is None else Guard(keys)
        try:
            if listen.startswith("unix:"):
                self._path = Path(listen.removeprefix("unix:"))
                clear_stale_socket(self._path)
                with private_files():
                    self._server = await asyncio.start_unix_server(
                        self._serve, self._path, limit=_MAX_HEAD_BYTES
                    )
                return listen
            context = metrics_context(settings)
            closed = keys is not None or asks_certificates(settings)
            check_reach(listen, insecure_bind, encrypted=context is not None, closed=closed)
            host, _, port = listen.rpartition(":")
            self._server = await asyncio.start_server(
                self._serve, host.strip("[]"), int(port), limit=_MAX_HEAD_BYTES, ssl=context
            )
        except ConfigError:
            raise
        except (OSError, ValueError) as error:
            raise ConfigError(f"metrics cannot be served on {listen}: {error}") from error
        bound = self._server.sockets[0].getsockname()[1]
        _log.info("metrics at %s://%s:%d/metrics", "https" if context else "http", host, bound)
        return f"{host}:{bound}"

    async def close(self) -> None:
        """Stop; a scrape under way ends."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # One request per connection: scrapes are seconds apart.
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, body = await self._answer(head.decode("latin-1").split("\r\n"))
            fields = f"content-type: {CONTENT_TYPE}\r\ncontent-length: {len(body)}\r\n"
            writer.write(f"HTTP/1.1 {status}\r\n{fields}connection: close\r\n\r\n".encode())
            if not head.startswith(b"HEAD "):
                writer.write(body)
            await writer.drain()
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
            pass  # the scraper's own business
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: list[str]) -> tuple[str, bytes]:
        method, _, rest = head[0].partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", b"only GET\n"
        if path != "/metrics":
            return "404 Not Found", b"metrics are at /metrics\n"
        if self._guard is not None:
            try:
                self._guard.authenticate(_authorization(head)).require(Scope.OBSERVE)
            except UnauthenticatedError as error:
                return "401 Unauthorized", f"{error}\n".encode()
            except PermissionDeniedError as error:
                return "403 Forbidden", f"{error}\n".encode()
        self._refresh()
        return "200 OK", await asyncio.to_thread(generate_latest, self._registry)


def _authorization(head: list[str]) -> str | None:
    fields = (line.partition(":") for line in head[1:])
    given = [value.strip() for name, _, value in fields if name.lower() == "authorization"]
    return given[0] if len(given) == 1 else None
