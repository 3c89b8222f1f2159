"""One caller's connection: what it may send before anybody knows who it is, and how slowly."""

from __future__ import annotations

import asyncio
import enum
import json
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from aegaeon.http.connection_limits import SharedLimits
from aegaeon.http.errors import INVALID
from aegaeon.http.upgrades import head_of_rest, parser_of_rest

#: Of a request line with its headers, or of whatever else is sent at once and is no body. What
#: comes in one read, up to 256 KiB, is taken in any case.
MAX_HEAD_BYTES = 64 * 1024
#: Bodies may come as slowly as this; what is slower has only its first time.
MIN_BODY_BYTES_PER_S = 16 * 1024
#: Of what waits for a caller, in the time that it has for it: as much as there is between the marks
#: at which a transport asks for no more and for more.
MIN_BYTES_TAKEN = 48 * 1024
#: A body that has been answered already is read on up to this size, since clients send it to its
#: end before they read the answer.
MAX_IGNORED_BYTES = 256 * 1024 * 1024
_SERVER = "server_error"


class _At(enum.Enum):
    """Where in its requests a caller is."""

    REST = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    ANSWER = enum.auto()


class Connection(HttpToolsProtocol):
    """Uvicorn's, with limits of size and time for what a caller sends and takes, of which it has
    only that of the time between requests.

    What is wrong is answered with an error object if no answer is under way, and ends the
    connection in any case. Keys are checked later, and so is the size of a body.
    """

    def __init__(
        self, config: Config, state: ServerState, app_state: dict[str, Any], limits: SharedLimits
    ) -> None:
        super().__init__(config, state, app_state)
        self._limits = limits
        self._times = limits.settings
        self.timeout_keep_alive = limits.settings.keep_alive_s  # type: ignore[assignment]
        self._at = _At.REST
        #: Counts what has been understood of what was sent.
        self._understood = 0
        #: Bytes since then.
        self._puzzling = 0
        self._body_bytes = 0
        self._body_begun = 0.0
        #: The request that is answered; `cycle` is the last one that has come.
        self._served: RequestResponseCycle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        #: Bytes that waited to be taken when its time began.
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request, if there is a place for one more caller."""
        super().connection_made(transport)
        limit = self._limits.open.enter(self, self.client[0] if self.client else "")
        if limit is None:
            self._read_within(self._times.head_timeout_s, self._head_is_late)
            return
        text = f"there are too many connections: the limit is {limit}"
        self._refuse(503, "too_many_connections", text, "too_many", _SERVER)

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        self._limits.open.leave(self)
        self._drop_answer()
        super().connection_lost(exc)

    def evict(self) -> None:
        """Another caller has got the place."""
        self._end("evicted")

    def data_received(self, data: bytes) -> None:
        """Take what has been sent, and count what it does not bring forward."""
        if self._at is _At.REST and self._reading is None:
            # Line breaks ahead of a request are none, and time runs all the same.
            self._read_within(self._times.head_timeout_s, self._head_is_late)
        before = self._understood
        self._unset_keepalive_if_required()
        self._parse(data)
        self._puzzling = self._puzzling + len(data) if self._understood == before else 0
        if self._puzzling > MAX_HEAD_BYTES and not self.transport.is_closing():
            text = (
                f"the request has {MAX_HEAD_BYTES} bytes of headers, or between parts of its body"
            )
            self._refuse(431, "headers_too_large", text, "head_size")

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                head = head_of_rest(self.scope["method"].encode(), self.headers)
                data = head + data[offer.args[0] :]
                self.parser = parser_of_rest(self)
            except httptools.HttpParserError:
                self.send_400_response("")
                return

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._understood += 1
        self._at = _At.HEAD
        if self._reading is None:
            self._read_within(self._times.head_timeout_s, self._head_is_late)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of a head: what comes behind a body must not change what has been checked."""
        if self._at is _At.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A body begins, empty or not."""
        self._understood += 1
        self._at = _At.BODY
        self._body_bytes = 0
        self._limits.open.work(self)
        super().on_headers_complete()
        self._expect_body()

    def on_body(self, body: bytes) -> None:
        """It goes on."""
        self._understood += 1
        self._body_bytes += len(body)
        super().on_body(body)
        if self.cycle.response_complete and self._body_bytes > MAX_IGNORED_BYTES:
            self._end("body_size")

    def on_message_complete(self) -> None:
        """It is over."""
        if self.parser.should_upgrade():  # as far as httptools knows
            return
        self._at = _At.ANSWER
        self._stop_reading_clock()
        super().on_message_complete()
        if self.cycle.response_complete and not self.pipeline:
            # Uvicorn forgets its time between requests when something is read.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
            self._rest()

    def on_response_complete(self) -> None:
        """The caller may ask for more."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()
        elif not self._is_answering:
            self._rest()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def timeout_keep_alive_handler(self) -> None:
        """It has not."""
        self._close()

    def pause_writing(self) -> None:
        """The caller takes nothing for the moment."""
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        if self._writing is not None and not self.transport.is_closing():
            self._writing.cancel()
            self._writing = None

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP, or is HTTP that could be read in two ways."""
        self._refuse(400, "invalid_http", "the request is no valid HTTP/1.1", "invalid_http")

    def _rest(self) -> None:
        if self._at is _At.ANSWER:
            self._at = _At.REST
        self._limits.open.rest(self)

    def _expect_body(self) -> None:
        self._body_begun = self.loop.time()
        self._read_within(self._times.body_timeout_s, self._body_is_late)

    def _head_is_late(self) -> None:
        if self._is_answering:  # the head is of a later request
            self._read_within(self._times.head_timeout_s, self._head_is_late)
        elif self._at is _At.HEAD:
            seconds = self._times.head_timeout_s
            text = f"the request's headers were not complete within {seconds:g} s"
            self._refuse(408, "request_timeout", text, "head_timeout")
        else:
            self._end("head_timeout")

    def _body_is_late(self) -> None:
        if self.flow.read_paused or self.pipeline:  # nobody listens
            self._expect_body()
            return
        allowed = self._times.body_timeout_s + self._body_bytes / MIN_BODY_BYTES_PER_S
        left = self._body_begun + allowed - self.loop.time()
        if left > 0:
            self._read_within(left, self._body_is_late)
            return
        text = f"{self._body_bytes} bytes of the body came within {allowed:.3g} s, and not its end"
        self._refuse(408, "request_timeout", text, "body_timeout")

    @property
    def _is_answering(self) -> bool:
        """A request has come that has not been answered to the end."""
        return self._served is not None and not self._served.response_complete

    def _read_within(self, seconds: float, late: Callable[[], None]) -> None:
        self._stop_reading_clock()
        self._reading = self.loop.call_later(seconds, late)

    def _stop_reading_clock(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _expect_reader(self) -> None:
        if self._writing is None:
            self._unsent = self.transport.get_write_buffer_size()
            seconds = self._times.write_timeout_s
            self._writing = self.loop.call_later(seconds, self._nobody_reads)

    def _nobody_reads(self) -> None:
        self._writing = None
        if self._unsent - self.transport.get_write_buffer_size() >= MIN_BYTES_TAKEN:
            self._expect_reader()
            return
        self._limits.metrics.on_cut("write_timeout")
        self.transport.abort()

    def _refuse(self, status: int, code: str, text: str, reason: str, kind: str = INVALID) -> None:
        """Answer, unless an answer is under way, and close."""
        served = self._served if self._at is _At.BODY and self._served is self.cycle else None
        owed = not self._is_answering if served is None else not served.response_started
        if owed and not self.transport.is_closing():
            self.transport.write(_answer(status, code, text, kind))
        self._end(reason)

    def _end(self, reason: str) -> None:
        """Close, for a reason that operators want to know of."""
        self._limits.metrics.on_cut(reason)
        self._close()
        self._drop_answer()

    def _drop_answer(self) -> None:
        """Tell whoever makes the answer that nobody will get it. Uvicorn tells the last request
        of a connection, which has not begun while an earlier one is answered."""
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()

    def _close(self) -> None:
        """Close, also where the caller does not take what waits for it."""
        self._stop_reading_clock()
        self.transport.close()
        self._expect_reader()


def _answer(status: int, code: str, text: str, kind: str) -> bytes:
    error = {"message": text, "type": kind, "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"x-request-id: req-{uuid.uuid4().hex}\r\ncontent-length: {len(body)}\r\n"
        f"{'retry-after: 1' if status == 503 else 'cache-control: no-store'}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
