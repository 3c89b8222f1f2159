"""Around every request: its id, and the limit of its body."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aegaeon.http.errors import ApiError, answer

_ID = re.compile(r"[!-~]{1,128}")
#: A body that is refused is read on up to this size, since clients send it to its end before they
#: read the answer.
_DISCARDED_BYTES = 256 * 1024 * 1024


class RequestScope:
    """Gives every response an ``x-request-id``, the caller's own if it sent one of 1 to 128 visible
    characters, and answers bodies above ``max_body_bytes`` with 413."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._limit = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        scope["aegaeon.request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._limit:
            if headers.get("expect", "").lower() != "100-continue":
                await _discard(receive)
            refusal = ApiError(self._refusal(), code="body_too_large", status=413)
            await answer(refusal)(scope, receive, send_with_id)
            return
        await self._app(scope, self._limited(receive), send_with_id)

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
