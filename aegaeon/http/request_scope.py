"""Around every request: its id, and the limit of its body."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aegaeon.http.errors import ApiError, answer
from aegaeon.http.metrics import GatewayMetrics

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

    def __init__(self, app: ASGIApp, max_body_bytes: int, metrics: GatewayMetrics) -> None:
        self._app = app
        self._limit = max_body_bytes
        self._metrics = metrics

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

        with self._metrics.in_progress.track_inprogress():
            try:
                await self._serve(scope, receive, send_with_id)
            finally:
                self._tell_end(scope, request_id, status, time.monotonic() - begin)

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
        # The route as it is declared: names in paths would each make a series of their own.
        route = getattr(scope.get("route"), "path", "unknown")
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
