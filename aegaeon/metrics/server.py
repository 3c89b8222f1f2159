"""GET /metrics for daemons that speak gRPC otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from aegaeon.errors import ConfigError
from aegaeon.metrics.registry import CONTENT_TYPE
from aegaeon.rpc.address import clear_stale_socket, private_files

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
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def start(self, listen: str) -> str:
        """Serve, to whoever can reach it; returns the address with the real port. Raises
        ConfigError."""
        try:
            if listen.startswith("unix:"):
                self._path = Path(listen.removeprefix("unix:"))
                clear_stale_socket(self._path)
                with private_files():
                    self._server = await asyncio.start_unix_server(
                        self._serve, self._path, limit=_MAX_HEAD_BYTES
                    )
                return listen
            host, _, port = listen.rpartition(":")
            self._server = await asyncio.start_server(
                self._serve, host.strip("[]"), int(port), limit=_MAX_HEAD_BYTES
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"metrics cannot be served on {listen}: {error}") from error
        bound = self._server.sockets[0].getsockname()[1]
        _log.info("metrics at http://%s:%d/metrics", host, bound)
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
            status, body = await self._answer(head.partition(b"\r\n")[0])
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

    async def _answer(self, line: bytes) -> tuple[str, bytes]:
        method, _, rest = line.decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", b"only GET\n"
        if path != "/metrics":
            return "404 Not Found", b"metrics are at /metrics\n"
        self._refresh()
        return "200 OK", await asyncio.to_thread(generate_latest, self._registry)
