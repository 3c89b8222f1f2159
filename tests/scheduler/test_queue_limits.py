"""Bounded queues: who is refused, who is not, and when to come again."""

from __future__ import annotations

from contextlib import suppress

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from aegaeon.errors import ResourceExhaustedError
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.pace import Pace
from tests.scheduler.conftest import Start
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.requests import generate_request
from tests.scheduler.test_generate import collect

SECOND = 1_000_000_000


def serving(*models: str, **limits: int) -> FakeClusterDriver:
    driver = FakeClusterDriver(CoreConfig(**limits))
    driver.add_worker()
    driver.settle()
    for model in models:
        driver.deploy(model)
    driver.settle()
    return driver


def fill(driver: FakeClusterDriver, model: str, count: int = 1_000) -> int:
    """Submit until one is refused; how many were accepted."""
    accepted = 0
    with suppress(ResourceExhaustedError):
        while accepted < count:
            driver.submit(request(model))
            accepted += 1
    return accepted


def test_requests_and_tokens_are_bounded_per_model_and_in_all() -> None:
    tokens = 1 + 3  # of a request
    assert fill(serving("a", max_requests_per_model=10), "a") == 10
    assert fill(serving("a", max_tokens_per_model=10 * tokens + 1), "a") == 10
    assert fill(serving("a", max_requests=16), "a") == 16
    assert fill(serving("a", max_tokens=16 * tokens + 1), "a") == 16
    assert fill(serving("a", "b", max_tokens=16 * tokens), "a") == 14


def test_hot_models_leave_room_for_the_others() -> None:
    driver = serving("a", "b", "c", max_requests=80)
    assert [fill(driver, model) for model in "abc"] == [70, 9, 1]
    for number in range(200):  # the oldest ends, and everybody wants its place, the hottest first
        driver.apply(events.CancelRequested(driver.sequences[number].sequence_id))
        for model in "aabbc":
            fill(driver, model, 1)
    held = {name: model.requests for name, model in driver.cluster.state.models.items()}
    assert all(count >= 20 for count in held.values()), held


def test_a_full_queue_takes_requests_again_when_some_have_ended() -> None:
    driver = serving("a", max_requests=8)
    accepted = fill(driver, "a")
    driver.settle()
    assert fill(driver, "a") == accepted


def test_those_who_are_refused_come_back_one_after_another() -> None:
    pace = Pace()
    assert pace.retry_ms(SECOND) == 1_000  # nothing is known
    pace.ended = 20
    told = [pace.retry_ms(2 * SECOND) for _ in range(40)]
    assert told == sorted(told)
    assert told[0] == 100  # at least
    assert told[-1] == 40 * 1_000 // 20
    assert pace.retry_ms(100 * SECOND) == 1_000  # what was known is too old


async def test_any_client_finds_the_time_where_grpc_puts_it(start: Start) -> None:
    harness = await start(max_requests_per_model=1)
    await harness.worker()
    await harness.deploy()
    first = harness.inference.Generate(generate_request((1,), 2_000))
    await first.read()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(harness, generate_request())
    status = rpc_status.from_call(caught.value)  # type: ignore[arg-type]
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    assert retry.retry_delay.ToMilliseconds() >= 100
    first.cancel()
