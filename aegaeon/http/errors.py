"""Every error as OpenAI's error object, and one table from the error family to HTTP statuses."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from aegaeon.errors import AegaeonError, ErrorReason

_log = logging.getLogger(__name__)

INVALID = "invalid_request_error"
#: Status, OpenAI's type, and the code that programs read.
TABLE: dict[ErrorReason, tuple[int, str, str]] = {
    ErrorReason.EMPTY_PROMPT: (400, INVALID, "empty_prompt"),
    ErrorReason.PROMPT_TOO_LONG: (400, INVALID, "context_length_exceeded"),
    ErrorReason.TOKEN_OUT_OF_VOCABULARY: (400, INVALID, "token_out_of_vocabulary"),
    ErrorReason.INVALID_FIELD: (400, INVALID, "invalid_value"),
    ErrorReason.MODEL_NOT_FOUND: (404, INVALID, "model_not_found"),
    ErrorReason.MODEL_NOT_READY: (503, "server_error", "model_not_ready"),
    ErrorReason.QUEUE_FULL: (429, "rate_limit_error", "rate_limit_exceeded"),
    ErrorReason.INSUFFICIENT_MEMORY: (400, INVALID, "insufficient_memory"),
    ErrorReason.CHECKPOINT_INVALID: (400, INVALID, "checkpoint_invalid"),
    ErrorReason.MODEL_UNSUPPORTED: (400, INVALID, "model_unsupported"),
    ErrorReason.WORKER_LOST: (503, "server_error", "unavailable"),
    ErrorReason.TOPOLOGY_INVALID: (400, INVALID, "topology_invalid"),
    ErrorReason.SHUTTING_DOWN: (503, "server_error", "shutting_down"),
    ErrorReason.DEADLINE_EXCEEDED: (504, "server_error", "timeout"),
    ErrorReason.CANCELLED: (499, INVALID, "cancelled"),
    ErrorReason.MODEL_DRAINING: (503, "server_error", "model_draining"),
    ErrorReason.MODEL_CONFLICT: (409, INVALID, "model_conflict"),
    ErrorReason.UNAUTHENTICATED: (401, INVALID, "invalid_api_key"),
    ErrorReason.PERMISSION_DENIED: (403, INVALID, "permission_denied"),
    ErrorReason.FEATURE_MISSING: (501, "server_error", "feature_missing"),
}
#: Fields of the contract under the names that HTTP has for them.
_FIELDS = {
    "decode_tokens": "max_tokens",
    "prompt_token_ids": "prompt",
    "min_new_tokens": "min_tokens",
    "max_new_tokens": "max_tokens",
    "name": "model",
}
#: Messages of the contract that they are in.
_GROUPS = ("sampling.", "stop.", "spec.")
#: Statuses after which the same request may succeed a little later.
_RETRIABLE = {429, 503}
#: Of a body, of which one is told.
_MAX_PROBLEMS = 1000
#: Members of unions in the places of problems; others are classes, or no identifiers at all.
_TYPES = {"str", "int", "float", "bool"}


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int = 400,
        kind: str = INVALID,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.code = code
        self.body: dict[str, Any] = {
            "error": {"message": message, "type": kind, "param": param, "code": code}
        }


class ClientGoneError(Exception):
    """The caller has closed the connection; nobody reads the answer."""


def unsupported(param: str, problem: str) -> ApiError:
    """A field that is known and cannot be honoured."""
    return ApiError(f"{param}: {problem}", code="unsupported", param=param)


def to_api_error(error: AegaeonError) -> ApiError:
    """The error family's member as an answer."""
    status, kind, code = TABLE.get(error.reason, (500, "server_error", "internal_error"))
    named = error.metadata.get("field", "").partition("[")[0]
    field = named
    for group in _GROUPS:
        field = field.removeprefix(group)
    param = _FIELDS.get(field, field) or None
    message = error.message
    if field.startswith("constraint"):  # of several fields here, and of tools
        return ApiError(message.replace(named, "the form asked for", 1), code=code, status=status)
    if param and message.startswith(named):
        message = param + message[len(named) :]
    return ApiError(
        message,
        code=code,
        status=status,
        kind=kind,
        param=param,
        retry_after_s=error.retry_after_s,
    )


def from_validation(error: ValidationError) -> ApiError:
    """What is wrong with a body, with the field that is."""
    if (count := error.error_count()) > _MAX_PROBLEMS:  # each of them takes time to tell
        return ApiError(f"there are {count} wrong or unknown values", code="invalid_value")
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    # A union has one problem per member: a value that is wrong tells more than another type.
    problems = [one for one in problems if not one["type"].endswith("_type")] or problems
    first = problems[0]
    param = _path(first["loc"])
    if first["type"] == "json_invalid":
        return ApiError(f"the body is no valid JSON: {first['msg']}", code="invalid_json")
    if first["type"] == "extra_forbidden":
        return ApiError(f"{param}: unknown field", code="unknown_field", param=param)
    same = [one["msg"] for one in problems if one["loc"][:1] == first["loc"][:1]]
    texts = list(dict.fromkeys(same))
    text = "; or ".join(texts[:4])
    return ApiError(f"{param}: {text}" if param else text, code="invalid_value", param=param)


def answer(error: ApiError) -> Response:
    """The error as a response."""
    headers = _retry_headers(error) if error.status in _RETRIABLE else {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    content = json.dumps(error.body, ensure_ascii=False).encode()
    return Response(content, error.status, headers, "application/json")


def _retry_headers(error: ApiError) -> dict[str, str]:
    """The standard header has whole seconds; OpenAI's clients read the other one first."""
    if error.retry_after_s is None:
        return {"retry-after": "1"}
    return {
        "retry-after": str(math.ceil(error.retry_after_s)),
        "retry-after-ms": str(math.ceil(error.retry_after_s * 1e3)),
    }


def install(app: FastAPI) -> None:
    """Let the application answer every error in this shape."""
    app.exception_handler(ApiError)(_answer_own)
    app.exception_handler(AegaeonError)(_answer_family)
    app.exception_handler(HTTPException)(_answer_http)
    app.exception_handler(ClientGoneError)(_answer_nobody)
    app.exception_handler(ClientDisconnect)(_answer_nobody)
    app.exception_handler(Exception)(_answer_fault)


def _answered(request: Request, error: ApiError) -> Response:
    request.scope["aegaeon.error_code"] = error.code
    return answer(error)


async def _answer_own(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answered(request, error)


async def _answer_family(request: Request, error: Exception) -> Response:
    assert isinstance(error, AegaeonError)
    return _answered(request, to_api_error(error))


async def _answer_http(request: Request, error: Exception) -> Response:
    """What the framework refuses: unknown paths, methods, bodies too large."""
    assert isinstance(error, HTTPException)
    texts: Mapping[int, tuple[str, str]] = {
        404: (f"there is nothing at {request.url.path}", "not_found"),
        405: (f"{request.method} is not allowed at {request.url.path}", "method_not_allowed"),
        413: (error.detail, "body_too_large"),
    }
    text, code = texts.get(error.status_code, (error.detail, HTTPStatus(error.status_code).phrase))
    code = code.lower().replace(" ", "_")
    response = _answered(request, ApiError(text, code=code, status=error.status_code))
    response.headers.update(error.headers or {})
    return response


async def _answer_nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


async def _answer_fault(request: Request, error: Exception) -> Response:
    request_id = request.scope.get("aegaeon.request_id", "")
    _log.error("request %s failed", request_id, exc_info=error)
    return _answered(request, fault(request_id))


def fault(request_id: str) -> ApiError:
    """A fault of ours, whose details are for the log."""
    return ApiError(
        f"the gateway failed on this request; its log has the reason under {request_id}",
        code="internal_error",
        status=500,
        kind="server_error",
    )


def _path(location: Sequence[int | str]) -> str | None:
    """Field names and indices; the names of union members, which pydantic adds, are left out."""
    parts: list[str] = []
    for part in location:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif part.isidentifier() and part.islower() and part not in _TYPES:
            parts.append(f".{part}" if parts else part)
    return "".join(parts) or None
