"""serve, stream and their async twins against a stub scheduler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aegaeon import LLMService, Request
from aegaeon.client.messages import to_generate_request
from aegaeon.client.session import Session
from aegaeon.errors import (
    ErrorReason,
    InvalidRequestError,
    NotFoundError,
    RequestTimeoutError,
    UnavailableError,
)
from aegaeon.rpc.channel import open_channel
from tests.client.conftest import RunningStub
from tests.client.stub_scheduler import SLOW_MODEL


def request(model: str = "echo", prompt: int = 10, tokens: int = 5, **fields: object) -> Request:
    return Request(
        model=model,
        arrival_time=0.0,
        request_id=f"{model}-{prompt}",
        prompt_token_ids=[prompt],
        decode_tokens=tokens,
        **fields,  # type: ignore[arg-type]
    )


def tokens_of(outcome: object) -> list[int]:
    assert isinstance(outcome, list), outcome
    return [step.new_token_id for step in outcome]


def eventually(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.005)


def test_answers_come_in_input_order_with_reasons_and_times(service: LLMService) -> None:
    slow, fast = request(SLOW_MODEL, 100), request("echo", 200)
    outcomes = service.serve([slow, fast])
    assert [tokens_of(outcome) for outcome in outcomes] == [
        [101, 102, 103, 104, 105],
        [201, 202, 203, 204, 205],
    ]
    steps = outcomes[0]
    assert isinstance(steps, list)
    assert [step.finish_reason for step in steps] == [None] * 4 + ["length"]
    assert [step.step_time_ns for step in steps] == [1000, 1001, 1002, 1003, 1004]
    assert all(abs(step.received_unix_ns - time.time_ns()) < 60e9 for step in steps)


def test_end_ids_and_stop_ids_reach_the_scheduler(service: LLMService) -> None:
    [ended, stopped, ignored] = service.serve(
        [
            request(eos_token_ids=[12]),
            request(stop_token_ids=[13], eos_token_ids=[12], ignore_eos=True),
            request(eos_token_ids=[12], ignore_eos=True),
        ]
    )
    assert tokens_of(ended) == [11, 12]
    assert tokens_of(stopped) == [11, 12, 13]
    assert tokens_of(ignored) == [11, 12, 13, 14, 15]
    assert ended[-1].finish_reason == "stop"  # type: ignore[index]


def test_one_bad_request_harms_no_other(service: LLMService) -> None:
    bad = Request("echo", 0.0, 1, [], 5)
    outcomes = service.serve([request(), bad, request("nobody"), request()])
    assert tokens_of(outcomes[0]) == tokens_of(outcomes[3]) == [11, 12, 13, 14, 15]
    assert isinstance(outcomes[1], InvalidRequestError)
    assert outcomes[1].reason is ErrorReason.EMPTY_PROMPT
    assert isinstance(outcomes[2], NotFoundError)
    assert outcomes[2].metadata == {"model": "nobody"}


def test_no_requests_need_no_scheduler(service: LLMService, stub: RunningStub) -> None:
    assert service.serve([]) == []
    assert stub.state.submits == []


async def test_serve_inside_a_running_loop_names_the_async_twin(service: LLMService) -> None:
    with pytest.raises(RuntimeError, match="serve_async"):
        service.serve([request()])
    assert tokens_of((await service.serve_async([request()]))[0]) == [11, 12, 13, 14, 15]


async def test_cancelling_serve_async_cancels_the_requests(
    service: LLMService, stub: RunningStub
) -> None:
    task = asyncio.create_task(service.serve_async([request(SLOW_MODEL, tokens=10_000)] * 3))
    await asyncio.to_thread(eventually, lambda: len(stub.state.submits) == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(eventually, lambda: stub.state.cancelled == 3)


def test_stream_yields_tokens_while_they_are_made(service: LLMService) -> None:
    for step in service.stream(request(SLOW_MODEL, tokens=1_000_000)):  # hours
        assert step.new_token_id == 11
        break
    stream = service.stream(request(SLOW_MODEL, tokens=50))
    assert next(stream).new_token_id == 11
    rest = list(stream)
    assert [step.new_token_id for step in rest] == list(range(12, 61))
    assert rest[-1].finish_reason == "length"


def test_leaving_a_stream_early_cancels_the_request(service: LLMService, stub: RunningStub) -> None:
    for step in service.stream(request(SLOW_MODEL, tokens=10_000)):
        assert step.new_token_id == 11
        break
    eventually(lambda: stub.state.cancelled == 1)


async def test_stream_async_yields_and_cancels(service: LLMService, stub: RunningStub) -> None:
    seen = [step.new_token_id async for step in service.stream_async(request())]
    assert seen == [11, 12, 13, 14, 15]
    async for _ in service.stream_async(request(SLOW_MODEL, tokens=10_000)):
        break
    await asyncio.to_thread(eventually, lambda: stub.state.cancelled == 1)


def test_stream_raises_the_error_of_its_request(service: LLMService) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        list(service.stream(request("nobody")))
    with pytest.raises(InvalidRequestError, match="decode_tokens"):
        list(service.stream(request(tokens=0)))


@pytest.mark.parametrize("breaks", [[1], [3], [4], [1, 1, 2], [5]])
def test_a_broken_stream_neither_loses_nor_doubles_tokens(
    service: LLMService, stub: RunningStub, breaks: list[int]
) -> None:
    stub.state.break_after = breaks
    outcomes = service.serve([request("echo", 10 * i) for i in range(1, 4)])
    expected = [[10 * i + k for k in range(1, 6)] for i in range(1, 4)]
    assert [tokens_of(outcome) for outcome in outcomes] == expected
    assert [outcome[-1].finish_reason for outcome in outcomes] == ["length"] * 3  # type: ignore[index]


def test_a_restarted_scheduler_goes_on_with_the_tokens_already_there(
    service: LLMService, stub: RunningStub
) -> None:
    stream = service.stream(request(SLOW_MODEL, tokens=40))
    seen = [next(stream).new_token_id for _ in range(3)]
    stub.stop()
    stub.state.not_found = 2  # it has just started, and its workers are not back yet
    stub.start()
    seen += [step.new_token_id for step in stream]
    assert seen == list(range(11, 51))
    assert len(stub.state.submits[-1].request.generated_token_ids) >= 3


def test_a_timeout_holds_while_there_is_no_scheduler(
    service: LLMService, stub: RunningStub
) -> None:
    stub.stop()
    [outcome] = service.serve([request(timeout_s=0.5)])
    stub.start()
    assert isinstance(outcome, RequestTimeoutError)


async def test_a_request_fails_when_no_scheduler_comes_back(tmp_path: Path) -> None:
    channel = open_channel(f"unix:{tmp_path}/nobody")
    async with Session(channel, resume_window_s=0.5) as session:
        pending = session.submit(to_generate_request(request()))
        with pytest.raises(UnavailableError):
            await pending.result()
    await channel.close(grace=None)


def test_a_closed_service_says_so(stub: RunningStub) -> None:
    service = LLMService(address=stub.address)
    service.close()
    service.close()
    with pytest.raises(Exception, match="closed"):
        service.serve([request()])


async def test_a_deadline_holds_while_the_scheduler_hangs() -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname())
    async with server, open_channel(address) as channel, Session(channel) as session:
        message = to_generate_request(request())
        started = time.monotonic()
        pending = session.submit(message, timeout_ns=200_000_000)
        with pytest.raises(RequestTimeoutError, match=r"0\.2 s"):
            await pending.result()
        assert time.monotonic() - started < 5
