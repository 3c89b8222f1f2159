"""What a caller may send before anybody knows who it is, and how slowly."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from aegaeon.http.connection import (
    MAX_HEAD_BYTES,
    MIN_BODY_BYTES_PER_S,
    MIN_BYTES_TAKEN,
    Connection,
)
from aegaeon.http.connection_limits import ConnectionLimits, shared_limits
from aegaeon.http.metrics import GatewayMetrics

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


def made(app: Any = answer, **times: float) -> Connection:
    """As the gateway makes it."""
    config = uvicorn.Config(app, http=Connection, lifespan="off", log_config=None)
    config.load()
    limits = shared_limits(ConnectionLimits(**times), GatewayMetrics())  # type: ignore[arg-type]
    return Connection(config, ServerState(), {}, limits)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(app: Any = answer, **times: float) -> AsyncIterator[Streams]:
    """A connection to a server of its own."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: made(app, **times), "127.0.0.1", 0)
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
        self.waiting = 0
        self.ended = asyncio.Event()
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def close(self) -> None:
        self.ended.set()

    def abort(self) -> None:
        self.aborted.set()

    def is_closing(self) -> bool:
        return self.ended.is_set()

    def pause_reading(self) -> None:
        """There is no other end."""

    def resume_reading(self) -> None:
        """See above."""


def refusal(data: bytes) -> tuple[int, str]:
    """Status and code of the only answer."""
    head, _, body = data.partition(b"\r\n\r\n")
    names = {line.partition(b":")[0] for line in head.split(b"\r\n")}
    assert {b"x-request-id", b"connection", b"content-type"} <= names
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["code"]


CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (HEAD + b"x: ", b"a" * 1024),  # one header
        (HEAD, b"a: b\r\n" * 170),  # many
        (b"", b"\r\n" * 512),  # none yet
        (CHUNKED + b"1;", b"x" * 1024),  # of a chunk
        (CHUNKED, b"0" * 15),  # its size
        (CHUNKED + b"0\r\n", b"a: b\r\n" * 170),  # behind the body
        (CHUNKED + b"0\r\na: ", b"x" * 1024),
    ],
)
async def test_a_head_without_end_is_refused_while_it_comes(begun: bytes, piece: bytes) -> None:
    protocol, transport = made(), Written()
    protocol.connection_made(transport)
    protocol.data_received(begun)
    sent = 0
    while not transport.is_closing():
        assert sent <= MAX_HEAD_BYTES
        protocol.data_received(piece)
        sent += len(piece)
    protocol.connection_lost(None)
    assert refusal(transport.data) in ((431, "headers_too_large"), (400, "invalid_http"))


async def test_bodies_are_no_heads_however_large_and_whatever_follows() -> None:
    async with connected() as (reader, writer):
        body = b"b" * (5 * MAX_HEAD_BYTES)
        head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        last = f"{head}connection: close\r\n\r\n"
        writer.write(f"{head}\r\n".encode() + body + last.encode() + body)
        answers = await read(reader)
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert answers.count(str(len(body)).encode()) == 2


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", False),
        (HEAD, True),
        (b"\r\n", False),
        (HEAD + b"\r\n" + HEAD, True),  # of a later request
    ],
)
async def test_a_head_that_is_not_complete_in_time_ends_the_connection(
    sent: bytes, answered: bool
) -> None:
    async with connected(head_timeout_s=0.05) as (reader, writer):
        writer.write(sent)
        data = await read(reader)
    if sent.startswith(HEAD + b"\r\n"):
        first, _, data = data.partition(b"\r\n0\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 200 OK")
    assert (refusal(data) == (408, "request_timeout")) if answered else (data == b"")


@pytest.mark.parametrize(
    "sent", [CHUNKED, CHUNKED + b"1\r\nx\r\n", HEAD + b"content-length: 9\r\n\r\n12345678"]
)
async def test_a_body_that_is_not_complete_in_time_is_answered_with_408(sent: bytes) -> None:
    told: list[str] = []

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            assert message["more_body"]
        told.append(message["type"])
        await send({"type": "http.response.start", "status": 499, "headers": []})

    async with connected(waits, body_timeout_s=0.05) as (reader, writer):
        writer.write(sent)
        data = await read(reader)
    assert refusal(data) == (408, "request_timeout")
    assert told == ["http.disconnect"]


async def test_a_body_that_goes_on_fast_enough_is_waited_for() -> None:
    protocol, transport = made(body_timeout_s=0.01), Written()
    protocol.connection_made(transport)
    protocol.data_received(HEAD + b"content-length: 1000000000\r\n\r\n")
    protocol.data_received(b"x" * (3600 * MIN_BODY_BYTES_PER_S))
    await asyncio.sleep(0.02)  # timers end in the order of their times, however late
    assert not transport.is_closing()
    protocol.connection_lost(None)


async def test_a_body_that_was_answered_is_not_read_for_ever() -> None:
    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})

    async with connected(refuses, body_timeout_s=0.05) as (reader, writer):
        writer.write(CHUNKED + b"1\r\nx\r\n")
        data = await read(reader)
    assert data.count(b"HTTP/1.1") == 1
    assert data.startswith(b"HTTP/1.1 401")


async def test_a_caller_that_leaves_is_missed_although_it_had_asked_for_more() -> None:
    """Two requests at once, of which the first is answered."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    async with connected(waits) as (_, writer):
        writer.write((HEAD + b"\r\n") * 2)
        await asyncio.wait_for(begun.wait(), _WAIT_S)
        writer.close()
        await asyncio.wait_for(ended.wait(), _WAIT_S)


async def test_what_nobody_takes_is_dropped_in_time() -> None:
    protocol, transport = made(write_timeout_s=0.01), Written()
    protocol.connection_made(transport)
    protocol.pause_writing()
    await asyncio.wait_for(transport.aborted.wait(), _WAIT_S)
    protocol.connection_lost(None)


async def test_a_caller_that_takes_something_in_time_is_not_dropped() -> None:
    protocol, transport = made(write_timeout_s=0.01), Written()
    protocol.connection_made(transport)
    protocol.pause_writing()
    protocol.resume_writing()
    await asyncio.sleep(0.02)
    assert not transport.aborted.is_set()
    protocol.connection_lost(None)


async def test_who_takes_a_long_answer_slowly_is_waited_for_while_it_does() -> None:
    protocol, transport = made(write_timeout_s=0.01), Written()
    protocol.connection_made(transport)
    transport.waiting = 100 * MIN_BYTES_TAKEN
    protocol.pause_writing()
    transport.waiting -= MIN_BYTES_TAKEN
    await asyncio.sleep(0.015)  # timers end in the order of their times, however late
    assert not transport.aborted.is_set()
    transport.waiting -= MIN_BYTES_TAKEN - 1
    await asyncio.wait_for(transport.aborted.wait(), _WAIT_S)
    protocol.connection_lost(None)


async def test_a_connection_that_does_not_close_is_aborted() -> None:
    """Its caller does not take the answer that ends it."""
    protocol, transport = made(head_timeout_s=0.01, write_timeout_s=0.01), Written()
    protocol.connection_made(transport)
    await asyncio.wait_for(transport.ended.wait(), _WAIT_S)
    await asyncio.wait_for(transport.aborted.wait(), _WAIT_S)
    protocol.connection_lost(None)


async def test_headers_behind_a_body_are_not_those_of_the_request() -> None:
    async def names(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        text = b",".join(name for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text})

    async with connected(names, keep_alive_s=0.05) as (reader, writer):
        writer.write(CHUNKED + b"0\r\nauthorization: Bearer x\r\n\r\n")
        data = await read(reader)
    assert b"host,transfer-encoding" in data
    assert b"authorization" not in data


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\nx",
        HEAD + b"content-length: 1\r\ncontent-length: 1\r\n\r\nx",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + b"a b: c\r\n\r\n",
        HEAD + b"a: b\x00c\r\n\r\n",
        CHUNKED + b"xyz\r\n",
        CHUNKED + b"fffffffffffffffff\r\n",
        CHUNKED + b"1\r\nxx\r\n",
        CHUNKED + b"1\nx\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
async def test_what_is_no_http_or_could_be_read_in_two_ways_is_refused(sent: bytes) -> None:
    async with connected() as (reader, writer):
        writer.write(sent)
        data = await read(reader)
    assert refusal(data) == (400, "invalid_http")


OFFER = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"


@pytest.mark.parametrize("size", [1, 50, 10_000])
async def test_offers_of_other_protocols_are_passed_over(size: int) -> None:
    """As Java's client and curl make them; the bodies are there, however the text is cut."""
    sent = b"POST / HTTP/1.1\r\nhost: x\r\n" + OFFER + b"content-length: 5\r\n\r\nabcde"
    sent += b"GET / HTTP/1.1\r\nhost: x\r\n" + OFFER + b"\r\n"
    sent += b"POST / HTTP/1.1\r\nhost: x\r\n" + OFFER + b"transfer-encoding: chunked\r\n\r\n"
    sent += b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    sent += HEAD + b"connection: close\r\n\r\n"
    async with connected() as (reader, writer):
        for start in range(0, len(sent), size):
            writer.write(sent[start : start + size])
            await writer.drain()
        data = await read(reader)
    assert data.count(b"HTTP/1.1 200 OK") == 4
    assert re.findall(rb"1\r\n(\d)\r\n0\r\n", data) == [b"5", b"0", b"7", b"0"]


async def test_garbage_behind_a_request_is_not_answered_within_its_answer() -> None:
    begun = asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass

    async with connected(waits) as (reader, writer):
        writer.write(HEAD + b"\r\n")
        await asyncio.wait_for(begun.wait(), _WAIT_S)
        writer.write(b"\x00garbage")
        data = await read(reader)
    assert data.count(b"HTTP/1.1") == 1
    assert data.endswith(b"begun\r\n")
