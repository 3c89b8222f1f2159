"""Server-sent events, heartbeats, and callers that leave."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aegaeon.errors import AegaeonError
from aegaeon.http.errors import ApiError, ClientGoneError, fault, to_api_error
from aegaeon.http.generation import Delta, Generation

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: An error within this time, in seconds, is the response's status; a later one is an event, since
#: the response has begun.
_FIRST_EVENT_S = 1.0
_HEARTBEAT = b": heartbeat\n\n"


def event(data: dict[str, Any], name: str | None = None, number: int | None = None) -> bytes:
    """One event."""
    head = f"id: {number}\n" if number is not None else ""
    head += f"event: {name}\n" if name is not None else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``; cancel it and raise ClientGoneError when the caller leaves."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def merged(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Delta], None]:
    """Deltas of all sequences as they come, with the sequence's index."""
    if len(generations) == 1:
        async for delta in generations[0].deltas():
            yield 0, delta
        return
    # Bounded: what a slow reader has not taken stays in the sequences.
    queue: asyncio.Queue[tuple[int, Delta | AegaeonError]] = asyncio.Queue(len(generations))

    async def pump(index: int, generation: Generation) -> None:
        try:
            async for delta in generation.deltas():
                await queue.put((index, delta))
        except AegaeonError as error:
            await queue.put((index, error))

    pumps = [asyncio.create_task(pump(*entry)) for entry in enumerate(generations)]
    try:
        running = len(pumps)
        while running:
            index, item = await queue.get()
            if isinstance(item, AegaeonError):
                raise item
            running -= item.finish_reason is not None
            yield index, item
    finally:
        for task in pumps:
            task.cancel()


async def started(request: Request, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The same items; raises at once what they raise within the first second, and
    ClientGoneError when the caller leaves within it."""
    first: asyncio.Task[T] = asyncio.create_task(_next(items))
    gone = asyncio.create_task(_gone(request.receive))
    try:
        await asyncio.wait(
            {first, gone}, timeout=_FIRST_EVENT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if first.done() and (error := first.exception()) is not None:
            raise error
        if gone.done() and not first.done():
            raise ClientGoneError
    except BaseException:
        first.cancel()
        raise
    finally:
        gone.cancel()
    return _resumed(first, items)


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)


async def _resumed(
    first: asyncio.Task[T], items: AsyncGenerator[T, None]
) -> AsyncGenerator[T, None]:
    try:
        yield await first
        async for item in items:
            yield item
    finally:
        first.cancel()


class EventStream(Response):
    """Events until they end, the caller leaves, or something fails, which is a last event.

    ``close`` is called in every case.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], heartbeat_s: float, close: Callable[[], object]
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._heartbeat_s = heartbeat_s
        self._close = close
        self._sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        tasks = [
            asyncio.create_task(self._write(send, scope)),
            asyncio.create_task(_gone(receive)),
            asyncio.create_task(self._beat(send)),
        ]
        try:
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._close()

    async def _write(self, send: Send, scope: Scope) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for part in self._events:
                await self._send(send, part)
        except Exception as error:
            told = _told(error, scope.get("aegaeon.request_id", ""))
            scope["aegaeon.error_code"] = told.code
            await self._send(send, event(told.body))
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, part: bytes) -> None:
        self._sent += 1
        await send({"type": "http.response.body", "body": part, "more_body": True})

    async def _beat(self, send: Send) -> None:
        """A comment whenever nothing else was sent for a while: proxies close silent connections,
        and a caller that is gone is found."""
        while True:
            sent = self._sent
            await asyncio.sleep(self._heartbeat_s)
            if sent == self._sent:
                await self._send(send, _HEARTBEAT)


def _told(error: Exception, request_id: str) -> ApiError:
    """What the reader of a stream is told of its end."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, AegaeonError):
        return to_api_error(error)
    _log.error("request %s failed", request_id, exc_info=error)
    return fault(request_id)
