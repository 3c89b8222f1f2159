"""One table between the error family and gRPC status codes, in both directions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from aegaeon import errors
from aegaeon.errors import AegaeonError, ErrorReason
from aegaeon.v1 import errors_pb2

#: Status code and exception class of every reason; the classes are what clients catch.
TABLE: dict[ErrorReason, tuple[grpc.StatusCode, type[AegaeonError]]] = {
    ErrorReason.EMPTY_PROMPT: (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequestError),
    ErrorReason.PROMPT_TOO_LONG: (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequestError),
    ErrorReason.TOKEN_OUT_OF_VOCABULARY: (
        grpc.StatusCode.INVALID_ARGUMENT,
        errors.InvalidRequestError,
    ),
    ErrorReason.INVALID_FIELD: (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequestError),
    ErrorReason.MODEL_NOT_FOUND: (grpc.StatusCode.NOT_FOUND, errors.NotFoundError),
    ErrorReason.MODEL_NOT_READY: (grpc.StatusCode.UNAVAILABLE, errors.UnavailableError),
    ErrorReason.QUEUE_FULL: (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.ResourceExhaustedError),
    ErrorReason.INSUFFICIENT_MEMORY: (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        errors.ResourceExhaustedError,
    ),
    ErrorReason.CHECKPOINT_INVALID: (grpc.StatusCode.FAILED_PRECONDITION, errors.ModelLoadError),
    ErrorReason.MODEL_UNSUPPORTED: (
        grpc.StatusCode.FAILED_PRECONDITION,
        errors.ModelUnsupportedError,
    ),
    ErrorReason.WORKER_LOST: (grpc.StatusCode.UNAVAILABLE, errors.UnavailableError),
    ErrorReason.TOPOLOGY_INVALID: (grpc.StatusCode.FAILED_PRECONDITION, errors.PreconditionError),
    ErrorReason.CONTRACT_MISMATCH: (grpc.StatusCode.FAILED_PRECONDITION, errors.PreconditionError),
    ErrorReason.ENGINE_FAULT: (grpc.StatusCode.INTERNAL, errors.EngineError),
    ErrorReason.SHUTTING_DOWN: (grpc.StatusCode.UNAVAILABLE, errors.UnavailableError),
    ErrorReason.DEADLINE_EXCEEDED: (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        errors.RequestTimeoutError,
    ),
    ErrorReason.CANCELLED: (grpc.StatusCode.CANCELLED, errors.RequestCancelledError),
    ErrorReason.STALE_LEASE: (grpc.StatusCode.FAILED_PRECONDITION, errors.PreconditionError),
    ErrorReason.MODEL_DRAINING: (grpc.StatusCode.ABORTED, errors.UnavailableError),
    ErrorReason.MODEL_CONFLICT: (grpc.StatusCode.ALREADY_EXISTS, errors.ConflictError),
    ErrorReason.UNAUTHENTICATED: (grpc.StatusCode.UNAUTHENTICATED, errors.UnauthenticatedError),
    ErrorReason.PERMISSION_DENIED: (
        grpc.StatusCode.PERMISSION_DENIED,
        errors.PermissionDeniedError,
    ),
    ErrorReason.KV_NOT_FOUND: (grpc.StatusCode.NOT_FOUND, errors.NotFoundError),
    ErrorReason.FEATURE_MISSING: (grpc.StatusCode.FAILED_PRECONDITION, errors.PreconditionError),
}

#: For statuses that carry no detail: made by gRPC itself (limits, lost connections, deadlines).
_BARE_CODES: dict[grpc.StatusCode, ErrorReason] = {
    grpc.StatusCode.INVALID_ARGUMENT: ErrorReason.INVALID_FIELD,
    grpc.StatusCode.NOT_FOUND: ErrorReason.MODEL_NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE: ErrorReason.WORKER_LOST,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ErrorReason.QUEUE_FULL,
    grpc.StatusCode.DEADLINE_EXCEEDED: ErrorReason.DEADLINE_EXCEEDED,
    # By the other end, which stops: who cancels a call itself is told by asyncio.
    grpc.StatusCode.CANCELLED: ErrorReason.SHUTTING_DOWN,
    grpc.StatusCode.UNAUTHENTICATED: ErrorReason.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: ErrorReason.PERMISSION_DENIED,
    # By a server of a release before the call existed.
    grpc.StatusCode.UNIMPLEMENTED: ErrorReason.FEATURE_MISSING,
}

#: To try again after, in seconds: google.protobuf.Duration has a bound, and nobody waits longer.
_LONGEST_DELAY_S = 86_400.0


def to_detail(error: AegaeonError) -> errors_pb2.ErrorDetail:
    """The error as the contract's message."""
    reason = errors_pb2.ErrorReason.Name(error.reason.value)
    return errors_pb2.ErrorDetail(reason=reason, message=error.message, metadata=error.metadata)


def from_detail(detail: errors_pb2.ErrorDetail) -> AegaeonError:
    """The contract's message as the exception that clients catch."""
    try:
        reason = ErrorReason(detail.reason)
    except ValueError:  # a newer peer's reason: keep its text
        reason = ErrorReason.UNSPECIFIED
    row = TABLE.get(reason)
    cls = row[1] if row else AegaeonError
    return cls(detail.message, reason=reason, metadata=dict(detail.metadata))


async def abort(
    context: Any,  # grpc.aio.ServicerContext; its published stubs lack abort_with_status
    error: AegaeonError,
) -> NoReturn:
    """End the call with the error's status and its ErrorDetail."""
    code = TABLE.get(error.reason, (grpc.StatusCode.INTERNAL,))[0]
    number: int = code.value[0]
    status = status_pb2.Status(code=number, message=error.message, details=_details(error))
    await context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError("abort_with_status raises")


def _details(error: AegaeonError) -> list[any_pb2.Any]:
    """ErrorDetail, and for any gRPC client's own retry policy google.rpc.RetryInfo where a time is
    known."""
    detail = any_pb2.Any()
    detail.Pack(to_detail(error))
    if error.retry_after_s is None:
        return [detail]
    delay = error_details_pb2.RetryInfo()
    delay.retry_delay.FromTimedelta(timedelta(seconds=min(error.retry_after_s, _LONGEST_DELAY_S)))
    retry = any_pb2.Any()
    retry.Pack(delay)
    return [detail, retry]


def from_rpc_error(error: grpc.aio.AioRpcError) -> AegaeonError:
    """The exception for a failed call, from its ErrorDetail or, without one, from its code."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    for packed in status.details if status else ():
        detail = errors_pb2.ErrorDetail()
        if packed.Unpack(detail):
            return from_detail(detail)
    reason = _BARE_CODES.get(error.code(), ErrorReason.UNSPECIFIED)
    row = TABLE.get(reason)
    cls = row[1] if row else AegaeonError
    return cls(f"{error.code().name}: {error.details()}", reason=reason)
