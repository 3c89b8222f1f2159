"""One session: many requests over one stream, with the deltas of all of them batched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from aegaeon.errors import AegaeonError, InvalidRequestError
from aegaeon.rpc.status import to_detail
from aegaeon.v1 import inference_pb2
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.service.convert import generation_request
from aegaeon_scheduler.service.deltas import fill
from aegaeon_scheduler.service.driver import Driver, shutting_down

#: Deltas in one message at most: with full backlogs still well below the message limit.
_MAX_DELTAS = 512

Write = Callable[[inference_pb2.SessionResponse], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Stream:
    """A request of the session; without a sequence it has been refused with ``error``."""

    stream_id: int
    sequence: Sequence | None = None
    error: AegaeonError | None = None


class Session:
    """Reads submissions and writes deltas at the same time."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        #: Open requests by the client's id.
        self._open: dict[int, _Stream] = {}
        #: The same, by the core's id.
        self._by_sequence: dict[int, _Stream] = {}
        #: Have something to write, in the order in which it came up.
        self._pending: dict[int, _Stream] = {}
        self._ready = asyncio.Event()
        self._intake: asyncio.Task[None] | None = None
        self._ignore_closing = driver.on_closing(self._ready.set)

    def wake(self, sequence: Sequence) -> None:
        """See `driver.Reader`."""
        stream = self._by_sequence.get(sequence.sequence_id)
        if stream is not None:  # else it ended while being submitted, see `_submit`
            self._pending[stream.stream_id] = stream
            self._ready.set()

    async def run(
        self, requests: AsyncIterator[inference_pb2.SessionRequest], write: Write
    ) -> None:
        """Serve until the client has half-closed and every request has ended."""
        self._intake = asyncio.get_running_loop().create_task(self._read(requests))
        self._intake.add_done_callback(lambda _: self._ready.set())
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._pending:
                await self._flush(write)
            if self._intake.done():
                self._intake.result()  # a broken rule of the contract ends the session
                if not self._open:
                    return
            if self._driver.closing and not self._open:
                raise shutting_down()

    def close(self) -> None:
        """Cancel whatever is still open."""
        self._ignore_closing()
        if self._intake is not None:
            self._intake.cancel()
        for stream in list(self._open.values()):
            self._forget(stream)

    async def _read(self, requests: AsyncIterator[inference_pb2.SessionRequest]) -> None:
        async for message in requests:
            kind = message.WhichOneof("message")
            if kind == "submit":
                self._submit(message.submit)
            elif kind == "cancel":
                stream = self._open.get(message.cancel.stream_id)
                if stream is not None and stream.sequence is not None:
                    self._driver.cancel(stream.sequence)

    def _submit(self, submit: inference_pb2.SessionSubmit) -> None:
        stream_id = submit.stream_id
        if stream_id in self._open:
            raise InvalidRequestError(
                f"stream_id {stream_id} belongs to an open request of this session; choose another",
                metadata={"field": "stream_id", "value": stream_id},
            )
        stream = self._open[stream_id] = _Stream(stream_id)
        try:
            request = generation_request(submit.request, submit.timeout_ns)
            stream.sequence = self._driver.submit(request, self)
        except AegaeonError as error:
            stream.error = error
        else:
            self._by_sequence[stream.sequence.sequence_id] = stream
            if not stream.sequence.dirty:
                return
        self._pending[stream_id] = stream
        self._ready.set()

    async def _flush(self, write: Write) -> None:
        """Write one message with everything pending, up to the limit."""
        message = inference_pb2.SessionResponse()
        taken: list[_Stream] = []
        for stream_id in list(self._pending)[:_MAX_DELTAS]:
            stream = self._pending.pop(stream_id)
            taken.append(stream)
            self._add_delta(message, stream)
        await write(message)
        for stream in taken:
            if stream.sequence is not None:
                self._driver.caught_up(stream.sequence)

    def _add_delta(self, message: inference_pb2.SessionResponse, stream: _Stream) -> None:
        delta = message.deltas.add(stream_id=stream.stream_id)
        error = stream.error
        if stream.sequence is not None:
            fill(delta.response, stream.sequence, self._driver.unix_offset_ns)
            error = stream.sequence.error
        if error is not None:
            delta.error.CopyFrom(to_detail(error))
        if stream.sequence is None or stream.sequence.ended:
            self._forget(stream)

    def _forget(self, stream: _Stream) -> None:
        del self._open[stream.stream_id]
        if stream.sequence is not None:
            self._by_sequence.pop(stream.sequence.sequence_id, None)
            self._driver.release(stream.sequence)
