"""Around every request: its id, and the limit of its body."""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aegaeon.http.errors import ApiError, answer
from aegaeon.http.metrics import GatewayMetrics
from aegaeon.tracing import Tracing, current_trace_parent, trace_parent_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_log = logging.getLogger(__name__)

_ID = re.compile(r"[!-~]{1,128}")
#: Asked every few seconds by machines.
_PROBES = {"/health", "/ready", "/metrics"}
#: A body that is refused is read on up to this size, since clients send it to its end before they
#: read the answer.
_DISCARDED_BYTES = 256 * 1024 * 1024


class RequestScope:
    """Gives every response an ``x-request-id``, the caller's own if it sent one of 1 to 128 visible
    characters; answers bodies above ``max_body_bytes`` with 413; counts and logs the end."""

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        metrics: GatewayMetrics,
        tracing: Tracing | None,
    ) -> None:
        self._app = app
        self._limit = max_body_bytes
        self._metrics = metrics
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        scope["aegaeon.request_id"] = request_id
        begin, status = time.monotonic(), 499  # which nobody sees who has left before an answer

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        span = self._begin_span(scope, request_id)
        with self._metrics.in_progress.track_inprogress():
            try:
                await self._serve(scope, receive, send_with_id)
            finally:
                self._tell_end(scope, request_id, status, time.monotonic() - begin)
                if span is not None:
                    _end_span(span, scope, status)

    def _begin_span(self, scope: Scope, request_id: str) -> Span | None:
        """Of one request, below its caller's span if that came along."""
        if self._tracing is None or scope["path"] in _PROBES:
            return None
        given = Headers(scope=scope).get("traceparent", "")
        attributes = {"http.request.method": scope["method"], "request_id": request_id}
        span = self._tracing.begin("aegaeon.request", given, attributes)
        current_trace_parent.set(trace_parent_of(span))
        return span

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._limit:
            if headers.get("expect", "").lower() != "100-continue":
                await _discard(receive)
            refusal = ApiError(self._refusal(), code="body_too_large", status=413)
            scope["aegaeon.error_code"] = refusal.code
            await answer(refusal)(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    def _tell_end(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = _route(scope)
        code = scope.get("aegaeon.error_code", "")
        self._metrics.on_end(scope["method"], route, status, code, seconds)
        _log.log(
            logging.DEBUG if route in _PROBES else logging.INFO,
            "request %s: %s %s %d%s in %.3f s",
            request_id,
            scope["method"],
            scope["path"],
            status,
            f" {code}" if code else "",
            seconds,
            extra={
                "fields": {
                    "request_id": request_id,
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status,
                    "code": code,
                    "duration_s": round(seconds, 6),
                }
            },
        )

    def _limited(self, receive: Receive) -> Receive:
        size = 0

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._limit and message["type"] == "http.request":
                if message.get("more_body"):
                    await _discard(receive)
                raise HTTPException(413, self._refusal())
            return message

        return receive_limited

    def _refusal(self) -> str:
        return f"the body is larger than {self._limit} bytes (--max-body-bytes)"


async def _discard(receive: Receive) -> None:
    size = 0
    while size <= _DISCARDED_BYTES:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            return


def _route(scope: Scope) -> str:
    """As it is declared: names in paths would each make a series of their own."""
    return str(getattr(scope.get("route"), "path", "unknown"))


def _end_span(span: Span, scope: Scope, status: int) -> None:
    span.set_attribute("http.route", _route(scope))
    span.set_attribute("http.response.status_code", status)
    if code := scope.get("aegaeon.error_code"):
        span.set_attribute("error.type", code)
    span.end()
