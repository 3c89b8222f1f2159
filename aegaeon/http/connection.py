"""One caller's connection: what it may send before anybody knows who it is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from aegaeon.http.errors import INVALID

#: Of a request line with its headers. What comes in one read, up to 256 KiB, is taken in any case.
MAX_HEAD_BYTES = 64 * 1024


class Connection(HttpToolsProtocol):
    """Uvicorn's, with limits of size and time for the head of a request, of which it has none.

    A head that is too large is answered with 431; one that is not complete in time ends the
    connection. Keys are checked afterwards, and so is the size of a body.
    """

    #: From the beginning of the connection or of a request to the end of its headers.
    head_timeout_s = 30.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head = False
        self._head_bytes = 0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        self._head_is_over()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head that had begun before."""
        begun = self._in_head
        super().data_received(data)
        if not (begun and self._in_head):
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        self._expect_head()

    def on_headers_complete(self) -> None:
        """It is over."""
        self._in_head = False
        self._head_is_over()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._head_is_over()
        self._late = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _head_is_over(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self) -> None:
        message = f"the request's headers are above the limit of {MAX_HEAD_BYTES} bytes"
        error = {"message": message, "type": INVALID, "param": None, "code": "headers_too_large"}
        body = json.dumps({"error": error}).encode()
        head = (
            "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
