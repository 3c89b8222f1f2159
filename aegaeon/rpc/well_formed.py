"""Bytes that are no message of a call's type are the caller's error, and no news for the log."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from aegaeon.errors import InvalidRequestError
from aegaeon.rpc.status import abort

_OURS = "/aegaeon.v1."


class WellFormed(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    """Ends such calls with INVALID_ARGUMENT; gRPC's own answer is UNKNOWN, with a traceback in the
    log for each."""

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        method = handler_call_details.method
        if not method.startswith(_OURS):
            return await continuation(handler_call_details)
        handler = self._handlers.get(method)
        if handler is None:
            handler = await continuation(handler_call_details)
            if handler is None:  # no such method
                return None
            handler = self._handlers[method] = _checked(handler)
        return handler


class _Nonsense:
    """Stands for a request that is none."""


def _checked(handler: Any) -> Any:
    read = handler.request_deserializer
    if handler.request_streaming:
        # Raised where the handler reads its requests, which answers the error family.
        return handler._replace(request_deserializer=lambda data: _read(read, data))
    field = "unary_stream" if handler.response_streaming else "unary_unary"
    return handler._replace(
        request_deserializer=lambda data: _read_or_nonsense(read, data),
        **{field: _refusing(getattr(handler, field))},
    )


def _read(read: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return read(data)
    except DecodeError as error:
        raise _refusal() from error


def _read_or_nonsense(read: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return read(data)
    except DecodeError:
        return _Nonsense()


def _refusal() -> InvalidRequestError:
    return InvalidRequestError(
        "the bytes of the request are no message of its type",
        metadata={"field": "", "value": ""},
    )


def _refusing(behaviour: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The same handler, of the same kind, for requests that are any."""

    async def answer(request: Any, context: Any) -> Any:
        if isinstance(request, _Nonsense):
            await abort(context, _refusal())
        return await behaviour(request, context)

    async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
        if isinstance(request, _Nonsense):
            await abort(context, _refusal())
        async for response in behaviour(request, context):
            yield response

    return answers if inspect.isasyncgenfunction(behaviour) else answer
