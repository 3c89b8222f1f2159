"""What a caller may send before anybody knows who it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from aegaeon.http.connection import MAX_HEAD_BYTES, Connection

_WAIT_S = 30.0


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """The size of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message["body"])
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


class Impatient(Connection):
    """Waits for no head."""

    head_timeout_s = 0.0


def made(protocol: type[Connection]) -> Connection:
    """As uvicorn makes it."""
    config = uvicorn.Config(answer, http=protocol, lifespan="off", log_config=None)
    config.load()
    return protocol(config, ServerState(), {})


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected() -> AsyncIterator[Streams]:
    """A connection to a server of its own."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: made(Connection), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()


async def read(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the other end closes."""
    return await asyncio.wait_for(reader.read(), _WAIT_S)


class Written(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.ended = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def close(self) -> None:
        self.ended.set()

    def is_closing(self) -> bool:
        return self.ended.is_set()


@pytest.mark.parametrize("piece", [b"a" * 1024, b"a: b\r\n" * 170])
async def test_a_head_without_end_is_refused_while_it_comes(piece: bytes) -> None:
    """Be it one header, or many."""
    protocol, transport = made(Connection), Written()
    protocol.connection_made(transport)
    protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\nx: ")
    sent = 0
    while not transport.is_closing():
        assert sent <= MAX_HEAD_BYTES
        protocol.data_received(piece)
        sent += len(piece)
    assert sent > MAX_HEAD_BYTES
    protocol.connection_lost(None)
    head, _, body = transport.data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "headers_too_large"


async def test_bodies_are_no_heads_however_large_and_whatever_follows() -> None:
    async with connected() as (reader, writer):
        body = b"b" * (5 * MAX_HEAD_BYTES)
        head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        last = f"{head}connection: close\r\n\r\n"
        writer.write(f"{head}\r\n".encode() + body + last.encode() + body)
        answers = await read(reader)
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert answers.count(str(len(body)).encode()) == 2


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n"])
async def test_a_caller_that_does_not_come_to_an_end_is_left(sent: bytes) -> None:
    protocol, transport = made(Impatient), Written()
    protocol.connection_made(transport)
    protocol.data_received(sent)
    await asyncio.wait_for(transport.ended.wait(), _WAIT_S)
    protocol.connection_lost(None)
    assert transport.data == b""
