"""Session: many requests over one stream."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import grpc
import pytest

from aegaeon.errors import ErrorReason
from aegaeon.rpc.status import from_rpc_error
from aegaeon.v1 import errors_pb2, inference_pb2, inference_pb2_grpc
from tests.scheduler.conftest import Harness, Start, narrow_channel, until
from tests.scheduler.requests import generate_request, submit
from tests.scheduler.stub_model import answer, told_of
from tests.scheduler.stub_worker import StubSettings


class Client:
    """Reads a session to its end, checking its promises on the way."""

    def __init__(self, inference: inference_pb2_grpc.InferenceServiceStub) -> None:
        self.call = inference.Session()
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.finished: dict[int, int] = {}
        self.errors: dict[int, errors_pb2.ErrorDetail] = {}
        self.messages = 0
        #: Most probable tokens that came with each token, where log-probabilities came at all.
        self.rivals: dict[int, list[int]] = defaultdict(list)

    async def read(self) -> None:
        async for message in self.call:
            self.messages += 1
            ids = [delta.stream_id for delta in message.deltas]
            assert len(ids) == len(set(ids))
            self._take_tokens(message)
            for delta in message.deltas:
                self._take_end(delta)

    async def finish(self) -> None:
        await self.call.done_writing()
        await self.read()

    def _take_tokens(self, message: inference_pb2.SessionResponse) -> None:
        counts = message.step_token_counts
        assert len(message.stream_ids) == len(message.token_ids) == sum(counts)
        assert len(counts) == len(message.step_times_ns) == len(message.received_unix_ns)
        assert all(counts)
        for stream_id, token in zip(message.stream_ids, message.token_ids, strict=True):
            assert stream_id not in self.finished, "a token after the end"
            assert stream_id not in self.errors, "a token after an error"
            self.tokens[stream_id].append(token)
        for index, count in told_of(message.log_probabilities, message.token_ids).items():
            self.rivals[message.stream_ids[index]].append(count)

    def _take_end(self, delta: inference_pb2.SessionDelta) -> None:
        assert delta.stream_id not in self.finished, "a second end"
        assert delta.stream_id not in self.errors, "an end after an error"
        assert not delta.response.token_ids
        if delta.HasField("error"):
            self.errors[delta.stream_id] = delta.error
        else:
            assert delta.response.finish_reason
            self.finished[delta.stream_id] = delta.response.finish_reason


async def test_many_requests_share_messages_and_each_ends_once(scheduler: Harness) -> None:
    client = Client(scheduler.inference)
    for i in range(1, 201):
        await client.call.write(submit(i, generate_request((i,), 10 + i % 50)))
    await client.finish()
    assert {i: client.tokens[i] for i in range(1, 201)} == {
        i: answer((i,), 10 + i % 50) for i in range(1, 201)
    }
    assert len(client.finished) == 200
    assert client.messages < sum(map(len, client.tokens.values())) / 4
    await scheduler.settled()


async def test_log_probabilities_come_with_their_tokens_for_those_that_ask(
    scheduler: Harness,
) -> None:
    one, other = Client(scheduler.inference), Client(scheduler.inference)
    asked = {i: {1: 0, 2: 1, 3: 20}.get(i % 7) for i in range(1, 61)}
    for i, count in asked.items():
        request = generate_request((i,), 40)
        if count is not None:
            request.sampling.logprobs = count
        await (one if i % 2 else other).call.write(submit(i, request))
    cancelled = [i for i in asked if i % 5 == 0]
    for i in cancelled:
        cancel = inference_pb2.SessionCancel(stream_id=i)
        client = one if i % 2 else other
        await client.call.write(inference_pb2.SessionRequest(cancel=cancel))
    await asyncio.gather(one.finish(), other.finish())
    for client, parity in ((one, 1), (other, 0)):
        expected = {
            i: [count] * len(client.tokens[i])
            for i, count in asked.items()
            if i % 2 == parity and count is not None
        }
        assert {i: client.rivals[i] for i in expected} == expected
        assert all(asked[i] is not None for i, counts in client.rivals.items() if counts)
        assert all(len(client.tokens[i]) == 40 for i in expected if i not in cancelled)
    await scheduler.settled()


async def test_refusals_end_their_own_request_alone(scheduler: Harness) -> None:
    client = Client(scheduler.inference)
    await client.call.write(submit(1, generate_request((1,), 20)))
    await client.call.write(submit(2, generate_request(())))
    await client.call.write(submit(3, generate_request(model="nobody")))
    await client.finish()
    assert client.tokens[1] == answer((1,), 20)
    assert client.errors[2].reason == errors_pb2.ERROR_REASON_EMPTY_PROMPT
    assert client.errors[3].reason == errors_pb2.ERROR_REASON_MODEL_NOT_FOUND


async def test_requests_of_one_message_are_accepted_or_refused_each_on_its_own(
    scheduler: Harness,
) -> None:
    client = Client(scheduler.inference)
    together = [
        submit(1, generate_request((1,), 20)),
        submit(2, generate_request(())),
        submit(3, generate_request(model="nobody")),
        submit(4, generate_request((4,), 30)),
    ]
    submits = inference_pb2.SessionSubmits(submits=[message.submit for message in together])
    await client.call.write(inference_pb2.SessionRequest(submits=submits))
    await client.finish()
    assert client.tokens[1] == answer((1,), 20)
    assert client.errors[2].reason == errors_pb2.ERROR_REASON_EMPTY_PROMPT
    assert client.errors[3].reason == errors_pb2.ERROR_REASON_MODEL_NOT_FOUND
    assert client.tokens[4] == answer((4,), 30)
    await scheduler.settled()


async def test_cancelling_ends_one_request_with_one_delta(scheduler: Harness) -> None:
    client = Client(scheduler.inference)
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
            tokens += message.token_ids
            if message.deltas:
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
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(caught.value).reason is ErrorReason.INVALID_FIELD
    await scheduler.settled()


@pytest.mark.parametrize("sent", [b"", b"\x9a\x06\x00"], ids=["empty", "of a later version"])
async def test_a_message_of_no_known_kind_ends_the_session(scheduler: Harness, sent: bytes) -> None:
    """Whoever sent it would wait for an answer for ever."""
    call = scheduler.inference.Session()
    await call.write(submit(1, generate_request((1,), 4_000)))
    await call.write(inference_pb2.SessionRequest.FromString(sent))
    with pytest.raises(grpc.aio.AioRpcError, match="no kind that the scheduler") as caught:
        async for _ in call:
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await scheduler.settled()


async def test_breaking_the_stream_cancels_its_requests_and_no_others(scheduler: Harness) -> None:
    broken, kept = scheduler.inference.Session(), Client(scheduler.inference)
    for i in range(1, 101):
        await broken.write(submit(i, generate_request((i,), 4_000)))
    await kept.call.write(submit(1, generate_request((5,), 60)))
    await broken.read()
    broken.cancel()
    await kept.finish()
    assert kept.tokens[1] == answer((5,), 60)
    await scheduler.settled()


async def test_a_session_that_is_not_read_pauses_its_requests_and_no_others(start: Start) -> None:
    harness = await start(reader_backlog_tokens=16)
    worker = await harness.worker(StubSettings(step_s=0.0005))
    await harness.deploy()
    state = harness.server.driver.cluster.state
    async with narrow_channel(harness) as channel:
        slow = Client(inference_pb2_grpc.InferenceServiceStub(channel))
        for i in range(1, 9):
            await slow.call.write(submit(i, generate_request((i,), 1_000)))
        await until(lambda: len(state.sequences) == 8)
        await until(lambda: all(s.paused for s in state.sequences.values()))
        other = Client(harness.inference)
        await other.call.write(submit(1, generate_request((9,), 1_000)))
        await other.finish()
        assert other.tokens[1] == answer((9,), 1_000)
        steps = worker.steps
        await asyncio.sleep(0.05)
        assert worker.steps == steps  # paused sequences cost their engine nothing
        # The worker takes some steps more until it is told.
        assert all(16 <= s.unread <= 200 for s in state.sequences.values())
        await slow.finish()
    assert {i: slow.tokens[i] for i in range(1, 9)} == {i: answer((i,), 1_000) for i in range(1, 9)}
    await harness.settled()


async def test_no_request_is_taken_in_while_thousands_of_ends_are_unread(start: Start) -> None:
    harness = await start()
    await harness.worker(StubSettings(step_s=0.0))
    await harness.deploy()
    statistics = harness.server.driver.cluster.state.statistics
    count = 12_000
    async with narrow_channel(harness) as channel:
        client = Client(inference_pb2_grpc.InferenceServiceStub(channel))

        async def write() -> None:
            for i in range(1, count + 1):
                await client.call.write(submit(i, generate_request(model="nobody")))

        writing = asyncio.create_task(write())
        await until(lambda: statistics.rejected >= 4_096, 40)
        before = -1
        while before != statistics.rejected:
            before = statistics.rejected
            await asyncio.sleep(0.1)
        assert before < count / 2
        reading = asyncio.create_task(client.read())
        await writing
        await client.call.done_writing()
        await reading
    assert len(client.errors) == count
    harness.assert_empty()


async def test_a_timeout_ends_its_request_with_the_tokens_so_far(scheduler: Harness) -> None:
    client = Client(scheduler.inference)
    await client.call.write(submit(1, generate_request((1,), 4_000), timeout_ns=150_000_000))
    await client.finish()
    assert client.errors[1].reason == errors_pb2.ERROR_REASON_DEADLINE_EXCEEDED
    assert client.tokens[1]
    await scheduler.settled()


async def test_stopping_the_daemon_tells_every_open_request(start: Start) -> None:
    harness = await start()
    await harness.worker()
    await harness.deploy()
    client = Client(harness.inference)
    await client.call.write(submit(1, generate_request((1,), 4_000)))
    reading = asyncio.create_task(client.read())
    await until(lambda: bool(client.tokens[1]))
    harness.server.driver.end_all()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await reading
    assert from_rpc_error(caught.value).reason is ErrorReason.SHUTTING_DOWN
    assert client.errors[1].reason == errors_pb2.ERROR_REASON_SHUTTING_DOWN
    await harness.settled()  # the caller has the answer before the call's handler has ended
