"""Requests that offer another protocol, as Java's client does with HTTP/2, and are served in this
one, body included."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import httptools

#: Headers that say where a body ends.
_FRAMING = (b"content-length", b"transfer-encoding")


class _Callbacks(Protocol):
    """What a parser calls."""

    def on_message_begin(self) -> None: ...
    def on_url(self, url: bytes) -> None: ...
    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_headers_complete(self) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


class _AfterHead:
    """Passes on what comes behind the first head."""

    def __init__(self, callbacks: _Callbacks) -> None:
        self._callbacks = callbacks
        self._passes = False
        self.on_body = callbacks.on_body
        self.on_message_complete = callbacks.on_message_complete

    def on_message_begin(self) -> None:
        if self._passes:
            self._callbacks.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._passes:
            self._callbacks.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._passes:
            self._callbacks.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._passes:
            self._callbacks.on_headers_complete()
        self._passes = True


def parser_of_rest(callbacks: _Callbacks) -> httptools.HttpRequestParser:
    """A parser that is to be shown `head_of_rest` and what follows the head of a request: the
    other one takes that for the other protocol."""
    return httptools.HttpRequestParser(_AfterHead(callbacks))


def head_of_rest(method: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """What tells such a parser where the body ends."""
    framing = b"".join(b"%b: %b\r\n" % one for one in headers if one[0] in _FRAMING)
    return b"%b / HTTP/1.1\r\n%b\r\n" % (method, framing)
