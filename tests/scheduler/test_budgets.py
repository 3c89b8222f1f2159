"""UseBudget: what all gateways of a cluster share."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from aegaeon.errors import ErrorReason
from aegaeon.rpc.status import from_rpc_error
from aegaeon.v1 import inference_pb2
from tests.scheduler.conftest import Start


def use(holder: str = "h", **fields: int) -> inference_pb2.UseBudgetRequest:
    return inference_pb2.UseBudgetRequest(holder=holder, **fields)  # type: ignore[arg-type]


async def test_too_much_is_refused_with_the_time_to_wait(start: Start) -> None:
    harness = await start()
    asked = {"requests_per_minute": 10, "requests": 10}
    await harness.inference.UseBudget(use(**asked))
    await harness.inference.UseBudget(use("another", **asked))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await harness.inference.UseBudget(use(**asked))
    error = from_rpc_error(caught.value)
    assert error.reason is ErrorReason.QUEUE_FULL
    assert error.metadata["limit"] == "requests_per_minute"
    assert error.metadata["value"] == "10"
    assert error.retry_after_s
    assert 0 < error.retry_after_s <= 60


async def test_a_wait_beyond_every_bound_is_told_as_a_day(start: Start) -> None:
    harness = await start()
    owed = use(tokens_per_minute=1, tokens=2**32 - 1, used=True)
    for _ in range(100):
        await harness.inference.UseBudget(owed)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await harness.inference.UseBudget(use(tokens_per_minute=1, tokens=1))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    status = rpc_status.from_call(caught.value)
    assert status is not None
    delay = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(delay) for detail in status.details)
    assert delay.retry_delay.seconds == 86_400


@pytest.mark.parametrize("holder", ["", "h" * 129])
async def test_a_holder_has_a_name(start: Start, holder: str) -> None:
    harness = await start()
    with pytest.raises(grpc.aio.AioRpcError, match="holder") as caught:
        await harness.inference.UseBudget(use(holder))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
