"""One session: many requests over one stream, with the tokens of all of them batched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice

from aegaeon.errors import AegaeonError, InvalidRequestError
from aegaeon.security.guard import current_caller
from aegaeon.v1 import inference_pb2
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import GenerationRequest
from aegaeon_scheduler.service.deltas import session_response
from aegaeon_scheduler.service.driver import Driver, shutting_down
from aegaeon_scheduler.service.intake import checked_request

#: Refusals in one message at most; with long errors still well below the message limit.
_MAX_REFUSALS = 512
#: Ends that the client has not read at which no further request is taken in, since what belongs to
#: an ended request counts against no other limit.
_MAX_UNREAD_ENDS = 4_096

Write = Callable[[inference_pb2.SessionResponse], Awaitable[None]]


class Session:
    """Reads submissions and writes what is new at the same time."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._caller = current_caller.get()
        #: Open requests by the client's id.
        self._open: dict[int, Sequence] = {}
        #: Requests that wait for workers of an earlier scheduler, by the client's id.
        self._waiting: dict[int, asyncio.Task[None]] = {}
        #: Requests that were not accepted, by the client's id, until it has been told; None for
        #: those that it cancelled before.
        self._refused: dict[int, AegaeonError | None] = {}
        self._ready = asyncio.Event()
        #: Set by every message that has been written.
        self._written = asyncio.Event()
        self._backlog = driver.open_backlog(self._ready.set)
        self._intake: asyncio.Task[None] | None = None
        self._ignore_closing = driver.on_closing(self._ready.set)

    async def run(
        self, requests: AsyncIterator[inference_pb2.SessionRequest], write: Write
    ) -> None:
        """Serve until the client has half-closed and every request has ended."""
        self._intake = asyncio.get_running_loop().create_task(self._read(requests))
        self._intake.add_done_callback(lambda _: self._ready.set())
        while True:
            await self._ready.wait()
            self._ready.clear()
            await self._flush(write)
            if self._intake.done():
                self._intake.result()  # a broken rule of the contract ends the session
                if not self._open and not self._refused and not self._waiting:
                    return
            if self._driver.closing and not self._open:
                raise shutting_down()

    def close(self) -> None:
        """Cancel whatever is still open."""
        self._ignore_closing()
        self._driver.close_backlog(self._backlog)
        if self._intake is not None:
            self._intake.cancel()
        for task in self._waiting.values():
            task.cancel()
        for sequence in self._open.values():
            self._driver.release(sequence)
            self._caller.spend(sequence.made)
        self._open.clear()

    async def _read(self, requests: AsyncIterator[inference_pb2.SessionRequest]) -> None:
        async for message in requests:
            kind = message.WhichOneof("message")
            if kind in ("submit", "submits"):
                while len(self._refused) + self._backlog.ends >= _MAX_UNREAD_ENDS:
                    self._written.clear()
                    await self._written.wait()
                await self._submit(
                    [message.submit] if kind == "submit" else message.submits.submits
                )
            elif kind == "cancel":
                self._cancel(message.cancel.stream_id)
            else:  # whoever sent it waits for an answer
                raise InvalidRequestError(
                    "a message of this session is of no kind that the scheduler knows: send "
                    "submit, submits or cancel; GetCapabilities tells what else this release has",
                    metadata={"field": "message"},
                )

    async def _submit(self, submits: Iterable[inference_pb2.SessionSubmit]) -> None:
        """Open requests that came in one message."""
        requests: dict[int, GenerationRequest] = {}
        for submit in submits:
            stream_id = submit.stream_id
            taken = (self._open, self._waiting, self._refused, requests)
            if any(stream_id in used for used in taken):
                raise InvalidRequestError(
                    f"stream_id {stream_id} belongs to an open request of this session; choose "
                    "another",
                    metadata={"field": "stream_id", "value": stream_id},
                )
            try:
                asked = submit.request
                self._caller.admit(asked.model, len(asked.prompt_token_ids))
                asked.cache_salt = self._caller.own_salt(asked.cache_salt)
                requests[stream_id] = await checked_request(asked, submit.timeout_ns, stream_id)
            except AegaeonError as error:
                self._refused[stream_id] = error
        for stream_id, request in list(requests.items()):
            if self._driver.rejoining.may_bring(request):
                del requests[stream_id]
                waits = self._submit_later(stream_id, request)
                self._waiting[stream_id] = asyncio.get_running_loop().create_task(waits)
        self._accept(requests)

    async def _submit_later(self, stream_id: int, request: GenerationRequest) -> None:
        """Open a request that the others of its message need not wait for."""
        requests: dict[int, GenerationRequest] = {}
        try:
            requests[stream_id] = await self._driver.rejoining.until_taken(request)
        except AegaeonError as error:
            self._refused[stream_id] = error
        del self._waiting[stream_id]
        self._accept(requests)

    def _cancel(self, stream_id: int) -> None:
        if (waiting := self._waiting.pop(stream_id, None)) is not None:
            waiting.cancel()
            self._refused[stream_id] = None
            self._ready.set()
        elif (sequence := self._open.get(stream_id)) is not None:
            self._driver.cancel(sequence)

    def _accept(self, requests: dict[int, GenerationRequest]) -> None:
        outcomes = self._driver.submit_all(list(requests.values()), self._backlog)
        for stream_id, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, AegaeonError):
                self._refused[stream_id] = outcome
            else:
                self._open[stream_id] = outcome
        if self._refused:
            self._ready.set()

    async def _flush(self, write: Write) -> None:
        """Write everything that there is."""
        while self._backlog.announced or self._refused:
            await self._driver.pacer.turn()
            parcel = self._backlog.take()
            refused = dict(islice(self._refused.items(), _MAX_REFUSALS))
            if parcel is None and not refused:
                return
            message = session_response(parcel, refused, self._driver.unix_offset_ns)
            # Their ids may be used again once the client has read this.
            for stream_id in refused:
                del self._refused[stream_id]
            for sequence in parcel.ended if parcel is not None else ():
                del self._open[sequence.stream_id]
                self._caller.spend(sequence.made)
            await write(message)
            self._written.set()
            self._driver.caught_up(self._backlog)
