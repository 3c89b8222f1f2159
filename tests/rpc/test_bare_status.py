"""Statuses without a detail, which gRPC itself makes."""

from __future__ import annotations

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from aegaeon.errors import ErrorReason, UnavailableError
from aegaeon.rpc.status import from_rpc_error


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_an_end_by_the_other_side_is_worth_another_try(code: grpc.StatusCode) -> None:
    """A server that stops between two messages ends a call as CANCELLED."""
    error = from_rpc_error(AioRpcError(code, Metadata(), Metadata(), details=code.name))
    assert isinstance(error, UnavailableError)
    assert error.reason in (ErrorReason.WORKER_LOST, ErrorReason.SHUTTING_DOWN)
