"""A gateway counts what its keys use at the scheduler, and by itself while there is none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from aegaeon.errors import PermissionDeniedError, ResourceExhaustedError
from aegaeon.http.shared_budgets import SharedBudgets
from aegaeon.rpc.channel import open_channel
from aegaeon.rpc.status import abort
from aegaeon.security.budgets import Budget, Budgets
from aegaeon.security.guard import Caller
from aegaeon.v1 import inference_pb2, inference_pb2_grpc


class StubScheduler(inference_pb2_grpc.InferenceServiceServicer):
    """Keeps budgets as the scheduler does, unless told to fail."""

    def __init__(self) -> None:
        self.budgets = Budgets()
        self.fails_with: grpc.StatusCode | None = None
        self.asked: list[inference_pb2.UseBudgetRequest] = []

    async def UseBudget(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.fails_with is not None:
            await context.abort(self.fails_with, "on purpose")
        self.asked.append(request)
        limits = request.requests_per_minute, request.tokens_per_minute
        use = self.budgets.owe if request.used else self.budgets.take
        try:
            use(Budget(request.holder, "someone", *limits), request.requests, request.tokens)
        except ResourceExhaustedError as error:
            await abort(context, error)
        return inference_pb2.UseBudgetResponse()


class Holder(Caller):
    def __init__(self, budget: Budget | None) -> None:
        self._budget = budget

    def check_model(self, model: str) -> None:
        if model == "forbidden":
            raise PermissionDeniedError("not this one")

    def budget(self) -> Budget | None:
        return self._budget


@pytest.fixture
async def scheduler() -> AsyncIterator[tuple[StubScheduler, str]]:
    server, stub = grpc.aio.server(), StubScheduler()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(stub, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield stub, f"127.0.0.1:{port}"
    await server.stop(0)


async def test_gateways_share_what_a_key_may_use(scheduler: tuple[StubScheduler, str]) -> None:
    _, address = scheduler
    holder = Holder(Budget("id", "app", None, 100))
    async with open_channel(address) as one, open_channel(address) as other:
        first, second = SharedBudgets(one), SharedBudgets(other)
        budget = await first.admit(holder, "m", 40)
        counting = first.spend(budget, 500)
        assert counting is not None
        await counting
        with pytest.raises(
            ResourceExhaustedError, match="'app' has used up its 100 tokens"
        ) as caught:
            await second.admit(holder, "m", 1)
        assert 200 < (caught.value.retry_after_s or 0) <= 270
        await first.close()


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE])
async def test_limits_hold_in_each_gateway_while_the_scheduler_keeps_none(
    scheduler: tuple[StubScheduler, str], code: grpc.StatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    stub, address = scheduler
    holder = Holder(Budget("id", "app", 1, None))
    stub.fails_with = code
    async with open_channel(address) as channel:
        budgets = SharedBudgets(channel)
        await budgets.admit(holder, "m", 1)
        for _ in range(3):
            with pytest.raises(ResourceExhaustedError):
                await budgets.admit(holder, "m", 1)
        warnings = [one for one in caplog.records if "in this process alone" in one.message]
        assert len(warnings) == 1
        stub.fails_with = None
        await budgets.admit(holder, "m", 1)
        with pytest.raises(ResourceExhaustedError):
            await budgets.admit(holder, "m", 1)


async def test_nobody_is_asked_where_nothing_is_limited(
    scheduler: tuple[StubScheduler, str],
) -> None:
    stub, address = scheduler
    async with open_channel(address) as channel:
        budgets = SharedBudgets(channel)
        assert await budgets.admit(Holder(None), "m", 1) is None
        assert budgets.spend(None, 10) is None
        requests_only = await budgets.admit(Holder(Budget("id", "app", 5, None)), "m", 1)
        assert budgets.spend(requests_only, 10) is None
        with pytest.raises(PermissionDeniedError):
            await budgets.admit(Holder(Budget("id", "app", 5, None)), "forbidden", 1)
    assert len(stub.asked) == 1
