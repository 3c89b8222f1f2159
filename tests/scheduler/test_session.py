"""Session: many requests over one stream."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import grpc
import pytest

from aegaeon.errors import ErrorReason
from aegaeon.rpc.status import from_rpc_error
from aegaeon.v1 import errors_pb2, inference_pb2
from tests.scheduler.conftest import Harness, Start, until
from tests.scheduler.requests import generate_request, submit
from tests.scheduler.stub_model import answer


class Client:
    """Reads a session to its end, checking its promises on the way."""

    def __init__(self, harness: Harness) -> None:
        self.call = harness.inference.Session()
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.finished: dict[int, int] = {}
        self.errors: dict[int, errors_pb2.ErrorDetail] = {}
        self.messages = 0

    async def read(self) -> None:
        async for message in self.call:
            self.messages += 1
            ids = [delta.stream_id for delta in message.deltas]
            assert len(ids) == len(set(ids))
            for delta in message.deltas:
                self._take(delta)

    async def finish(self) -> None:
        await self.call.done_writing()
        await self.read()

    def _take(self, delta: inference_pb2.SessionDelta) -> None:
        assert delta.stream_id not in self.finished, "a delta after the end"
        assert delta.stream_id not in self.errors, "a delta after an error"
        self.tokens[delta.stream_id] += delta.response.token_ids
        if delta.HasField("error"):
            self.errors[delta.stream_id] = delta.error
        elif delta.response.finish_reason:
            self.finished[delta.stream_id] = delta.response.finish_reason


async def test_many_requests_share_messages_and_each_ends_once(scheduler: Harness) -> None:
    client = Client(scheduler)
    for i in range(1, 201):
        await client.call.write(submit(i, generate_request((i,), 10 + i % 50)))
    await client.finish()
    assert {i: client.tokens[i] for i in range(1, 201)} == {
        i: answer((i,), 10 + i % 50) for i in range(1, 201)
    }
    assert len(client.finished) == 200
    assert client.messages < sum(map(len, client.tokens.values())) / 4
    await scheduler.settled()


async def test_refusals_end_their_own_request_alone(scheduler: Harness) -> None:
    client = Client(scheduler)
    await client.call.write(submit(1, generate_request((1,), 20)))
    await client.call.write(submit(2, generate_request(())))
    await client.call.write(submit(3, generate_request(model="nobody")))
    await client.finish()
    assert client.tokens[1] == answer((1,), 20)
    assert client.errors[2].reason == errors_pb2.ERROR_REASON_EMPTY_PROMPT
    assert client.errors[3].reason == errors_pb2.ERROR_REASON_MODEL_NOT_FOUND


async def test_cancelling_ends_one_request_with_one_delta(scheduler: Harness) -> None:
    client = Client(scheduler)
    await client.call.write(submit(1, generate_request((1,), 4_000)))
    await client.call.write(submit(2, generate_request((2,), 50)))
    for _ in range(2):  # the second one finds nothing
        cancel = inference_pb2.SessionCancel(stream_id=1)
        await client.call.write(inference_pb2.SessionRequest(cancel=cancel))
    await client.finish()
    assert client.finished[1] == inference_pb2.FINISH_REASON_CANCELLED
    assert client.tokens[1] == answer((1,), 4_000)[: len(client.tokens[1])]
    assert client.tokens[2] == answer((2,), 50)
    await scheduler.settled()


async def test_an_id_can_be_used_again_after_its_end(scheduler: Harness) -> None:
    call = scheduler.inference.Session()
    for prompt in range(1, 6):
        await call.write(submit(7, generate_request((prompt,), 5)))
        tokens: list[int] = []
        while True:
            message = await call.read()
            tokens += message.deltas[0].response.token_ids
            if message.deltas[0].response.finish_reason:
                break
        assert tokens == answer((prompt,), 5)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_an_id_in_use_ends_the_session_and_frees_everything(scheduler: Harness) -> None:
    call = scheduler.inference.Session()
    await call.write(submit(1, generate_request((1,), 4_000)))
    await call.write(submit(1, generate_request((2,), 5)))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    assert from_rpc_error(caught.value).reason is ErrorReason.INVALID_FIELD
    await scheduler.settled()


async def test_breaking_the_stream_cancels_its_requests_and_no_others(scheduler: Harness) -> None:
    broken, kept = scheduler.inference.Session(), Client(scheduler)
    for i in range(1, 101):
        await broken.write(submit(i, generate_request((i,), 4_000)))
    await kept.call.write(submit(1, generate_request((5,), 60)))
    await broken.read()
    broken.cancel()
    await kept.finish()
    assert kept.tokens[1] == answer((5,), 60)
    await scheduler.settled()


async def test_a_timeout_ends_its_request_with_the_tokens_so_far(scheduler: Harness) -> None:
    client = Client(scheduler)
    await client.call.write(submit(1, generate_request((1,), 4_000), timeout_ns=150_000_000))
    await client.finish()
    assert client.errors[1].reason == errors_pb2.ERROR_REASON_DEADLINE_EXCEEDED
    assert client.tokens[1]
    await scheduler.settled()


async def test_stopping_the_daemon_tells_every_open_request(start: Start) -> None:
    harness = await start()
    await harness.worker()
    await harness.deploy()
    client = Client(harness)
    await client.call.write(submit(1, generate_request((1,), 4_000)))
    reading = asyncio.create_task(client.read())
    await until(lambda: bool(client.tokens[1]))
    harness.server.driver.end_all()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await reading
    assert from_rpc_error(caught.value).reason is ErrorReason.SHUTTING_DOWN
    assert client.errors[1].reason == errors_pb2.ERROR_REASON_SHUTTING_DOWN
    harness.assert_empty()
