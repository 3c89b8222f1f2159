"""Where a daemon listens."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from aegaeon.errors import ConfigError
from aegaeon.rpc.address import bind


@pytest_asyncio.fixture
async def server() -> AsyncIterator[grpc.aio.Server]:
    server = grpc.aio.server()
    yield server
    await server.stop(None)


async def test_port_zero_becomes_the_port_that_was_picked(server: grpc.aio.Server) -> None:
    host, _, port = bind(server, "127.0.0.1:0", insecure_bind=False).rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "example.invalid:0"])
async def test_an_open_address_needs_to_be_allowed(server: grpc.aio.Server, listen: str) -> None:
    with pytest.raises(ConfigError, match="--insecure-bind"):
        bind(server, listen, insecure_bind=False)


async def test_an_open_address_is_allowed_on_request(server: grpc.aio.Server) -> None:
    assert bind(server, "0.0.0.0:0", insecure_bind=True).startswith("0.0.0.0:")


async def test_a_socket_file_is_its_users_alone(server: grpc.aio.Server, tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert bind(server, f"unix:{path}", insecure_bind=False) == f"unix:{path}"
    await server.start()
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


async def test_a_socket_in_use_is_refused(server: grpc.aio.Server, tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/s"
    bind(server, listen, insecure_bind=False)
    await server.start()
    other = grpc.aio.server()
    with pytest.raises(ConfigError, match="in use by another process"):
        bind(other, listen, insecure_bind=False)


async def test_a_path_too_long_for_the_kernel_is_refused(
    server: grpc.aio.Server, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="longer than 107 bytes"):
        bind(server, f"unix:{tmp_path}/{'x' * 120}", insecure_bind=False)
