"""The metrics' own small HTTP server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from aegaeon.errors import ConfigError
from aegaeon.metrics.server import MetricsServer
from tests.metrics.scraping import parse, scrape


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def address(registry: CollectorRegistry) -> AsyncIterator[str]:
    gauge = Gauge("looks", "How often somebody looked.", registry=registry)
    server = MetricsServer(registry, gauge.inc)
    yield await server.start("127.0.0.1:0")
    await server.close()


async def test_gauges_are_set_when_somebody_looks(address: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        for count in (1, 2):
            assert parse((await client.get("/metrics?x=1")).text) == {("looks",): count}
        head = await client.head("/metrics")
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("POST", "/metrics", 405)]
)
async def test_nothing_else_is_served(address: str, method: str, path: str, status: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        assert (await client.request(method, path)).status_code == status


@pytest.mark.parametrize(
    "sent", [b"", b"nonsense", b"GET " + b"x" * 100_000 + b"\r\n\r\n", b"\x00\xff"]
)
async def test_whoever_speaks_something_else_disturbs_nobody(address: str, sent: bytes) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    writer.write_eof()
    async with asyncio.timeout(5):
        assert b"200 OK" not in await reader.read()
    writer.close()
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        assert (await client.get("/metrics")).status_code == 200


async def test_a_socket_is_private_and_goes_with_the_server(
    registry: CollectorRegistry, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    server = MetricsServer(registry, lambda: None)
    assert await server.start(f"unix:{path}") == f"unix:{path}"
    assert path.stat().st_mode & 0o077 == 0
    assert await scrape(str(path)) == {}
    await server.close()
    assert not path.exists()


async def test_an_address_that_cannot_be_had_is_named(registry: CollectorRegistry) -> None:
    server = MetricsServer(registry, lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"metrics cannot be served on {listen}: "):
            await server.start(listen)
    with pytest.raises(ConfigError, match=r"metrics cannot be served on 127\.0\.0\.1:x: "):
        await server.start("127.0.0.1:x")
