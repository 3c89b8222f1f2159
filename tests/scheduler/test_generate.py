"""Generate: one request per call."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from aegaeon.errors import ErrorReason
from aegaeon.rpc.status import from_rpc_error
from aegaeon.v1 import inference_pb2, inference_pb2_grpc, model_pb2
from aegaeon_scheduler.core.values import AdmissionPolicy
from tests.scheduler.conftest import Harness, Start, narrow_channel, until
from tests.scheduler.requests import generate_request
from tests.scheduler.stub_model import answer, told_of
from tests.scheduler.stub_settings import StubSettings


async def collect(
    harness: Harness, request: inference_pb2.GenerateRequest
) -> tuple[list[int], inference_pb2.GenerateResponse]:
    """All tokens of a request, and its last message."""
    tokens: list[int] = []
    last = inference_pb2.GenerateResponse()
    async for last in harness.inference.Generate(request):
        assert len(last.token_ids) == len(last.step_times_ns) == len(last.received_unix_ns)
        told = told_of(last.log_probabilities, last.token_ids)
        count = request.sampling.logprobs if request.sampling.HasField("logprobs") else None
        assert told == ({} if count is None else dict.fromkeys(range(len(last.token_ids)), count))
        tokens += last.token_ids
    return tokens, last


async def refusal(harness: Harness, request: inference_pb2.GenerateRequest) -> ErrorReason:
    """The reason for which a request is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(harness, request)
    return from_rpc_error(caught.value).reason


async def test_tokens_arrive_in_order_and_end_once(scheduler: Harness) -> None:
    tokens, last = await collect(scheduler, generate_request((5, 6), 20))
    assert tokens == answer((5, 6), 20)
    assert last.finish_reason == inference_pb2.FINISH_REASON_LENGTH
    await scheduler.settled()


@pytest.mark.parametrize("count", [0, 5, 20])
async def test_log_probabilities_come_with_the_tokens(scheduler: Harness, count: int) -> None:
    request = generate_request((5, 6), 20)
    request.sampling.logprobs = count
    tokens, _ = await collect(scheduler, request)  # which checks them
    assert tokens == answer((5, 6), 20)


async def test_more_log_probabilities_than_allowed_are_refused(scheduler: Harness) -> None:
    request = generate_request((5, 6), 20)
    request.sampling.logprobs = 21
    assert await refusal(scheduler, request) is ErrorReason.INVALID_FIELD


async def test_generated_tokens_are_not_sent_again(scheduler: Harness) -> None:
    request = generate_request((5, 6), 20)
    request.generated_token_ids.extend(answer((5, 6), 15))
    tokens, _ = await collect(scheduler, request)
    assert tokens == answer((5, 6), 20)[15:]


async def test_a_finished_request_that_is_resumed_only_gets_its_end(scheduler: Harness) -> None:
    request = generate_request((5, 6), 20)
    request.generated_token_ids.extend(answer((5, 6), 20))
    tokens, last = await collect(scheduler, request)
    assert tokens == []
    assert last.finish_reason == inference_pb2.FINISH_REASON_LENGTH


async def test_hundreds_of_cancelled_calls_leave_nothing(scheduler: Harness) -> None:
    for _ in range(6):
        calls = [scheduler.inference.Generate(generate_request((i,), 4_000)) for i in range(1, 51)]
        await asyncio.gather(*(call.read() for call in calls))
        for call in calls:
            call.cancel()
    await scheduler.settled()
    snapshot = await scheduler.runtime()
    assert snapshot.statistics.cancelled == 300
    assert snapshot.active_requests == 0


async def test_a_deadline_frees_the_sequence(scheduler: Harness) -> None:
    call = scheduler.inference.Generate(generate_request((1,), 4_000), timeout=0.2)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await scheduler.settled()


async def test_a_prompt_of_5_mib_is_refused_by_its_length_at_once(scheduler: Harness) -> None:
    request = generate_request([40_000_000] * (5 * 2**20 // 4), 8)
    assert request.ByteSize() > 5 * 2**20
    assert await refusal(scheduler, request) is ErrorReason.PROMPT_TOO_LONG


async def test_a_long_prompt_within_the_context_passes(start: Start) -> None:
    harness = await start()
    await harness.worker(StubSettings(pool_bytes=1 << 34))
    spec = model_pb2.ModelSpec(name="long", path="/models/long", max_model_len=2_000_000)
    async for _ in harness.models.DeployModel(model_pb2.DeployModelRequest(spec=spec)):
        pass
    prompt = [31_999] * 1_400_000
    tokens, _ = await collect(harness, generate_request(prompt, 3, "long"))
    assert tokens == answer(prompt, 3)


async def test_a_message_over_the_limit_is_a_clear_error(scheduler: Harness) -> None:
    options = [("grpc.max_send_message_length", 256 << 20)]
    request = generate_request([31_999] * (23 << 20), 8)
    assert request.ByteSize() > 64 << 20
    async with grpc.aio.insecure_channel(scheduler.address, options=options) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Generate(request):
                pass
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(64 << 20) in (caught.value.details() or "")
    tokens, _ = await collect(scheduler, generate_request())
    assert tokens == answer((1, 2, 3), 8)


@pytest.mark.parametrize(
    ("context", "chunks", "permitted"),
    [
        (40, 4, 37),
        (4_096, 4, 4_093),
        # A chunk for the weights, and three of 1,024 blocks of 16 tokens.
        (1_000_000, 4, 3 * 16_384 - 3),
    ],
)
async def test_without_a_limit_there_are_as_many_tokens_as_there_is_room_for(
    start: Start, context: int, chunks: int, permitted: int
) -> None:
    harness = await start()
    worker = await harness.worker(StubSettings(pool_bytes=chunks << 20, packed_bytes=1 << 20))
    spec = model_pb2.ModelSpec(name="wide", path="/models/wide", max_model_len=context)
    async for _ in harness.models.DeployModel(model_pb2.DeployModelRequest(spec=spec)):
        pass
    call = harness.inference.Generate(generate_request(count=0, model="wide", min_new_tokens=10**6))
    await anext(aiter(call))
    assert worker.last_spec is not None
    assert worker.last_spec.stop.max_new_tokens == permitted
    assert worker.last_spec.stop.min_new_tokens == min(permitted, 10**6)
    call.cancel()
    await until(lambda: not worker.sequences)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (generate_request(()), ErrorReason.EMPTY_PROMPT),
        (generate_request([1] * 4_096), ErrorReason.PROMPT_TOO_LONG),
        (generate_request((32_000,)), ErrorReason.TOKEN_OUT_OF_VOCABULARY),
        (generate_request(eos_token_ids=[32_000]), ErrorReason.TOKEN_OUT_OF_VOCABULARY),
        (generate_request(stop_token_ids=[2**32 - 1]), ErrorReason.TOKEN_OUT_OF_VOCABULARY),
        (generate_request(min_new_tokens=9), ErrorReason.INVALID_FIELD),
        (generate_request(max_model_len=4_097), ErrorReason.INVALID_FIELD),
        (generate_request(model="nobody"), ErrorReason.MODEL_NOT_FOUND),
        (inference_pb2.GenerateRequest(model="m", label="x" * 257), ErrorReason.INVALID_FIELD),
        (inference_pb2.GenerateRequest(model="m", priority=9), ErrorReason.INVALID_FIELD),
        (inference_pb2.GenerateRequest(model="m", priority=-9), ErrorReason.INVALID_FIELD),
        (inference_pb2.GenerateRequest(model="m", ttft_slo_ns=1), ErrorReason.INVALID_FIELD),
        (inference_pb2.GenerateRequest(model="m", tpot_slo_ns=2**63), ErrorReason.INVALID_FIELD),
        (
            inference_pb2.GenerateRequest(model="m", prompt_token_ids=[1]),
            ErrorReason.INVALID_FIELD,
        ),
    ],
)
async def test_bad_requests_are_named_and_hurt_nobody(
    scheduler: Harness, request_: inference_pb2.GenerateRequest, reason: ErrorReason
) -> None:
    other = asyncio.create_task(collect(scheduler, generate_request((9, 9), 30)))
    assert await refusal(scheduler, request_) is reason
    assert (await other)[0] == answer((9, 9), 30)
    scheduler.assert_empty()


async def test_both_lengths_are_named_when_a_prompt_is_too_long(scheduler: Harness) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(scheduler, generate_request([1] * 5_000))
    error = from_rpc_error(caught.value)
    assert error.metadata == {"prompt_tokens": "5000", "max_model_len": "4096"}
    assert "5000" in error.message
    assert "4096" in error.message


async def test_a_full_queue_is_told_and_drains(start: Start) -> None:
    harness = await start(max_requests=2)
    await harness.worker()
    await harness.deploy()
    calls = [harness.inference.Generate(generate_request((i,), 4_000)) for i in (1, 2)]
    await asyncio.gather(*(call.read() for call in calls))
    assert await refusal(harness, generate_request()) is ErrorReason.QUEUE_FULL
    for call in calls:
        call.cancel()
    await harness.settled()
    assert (await collect(harness, generate_request()))[0] == answer((1, 2, 3), 8)


async def test_a_promise_that_could_not_be_kept_is_refused_with_a_time_to_retry(
    start: Start,
) -> None:
    harness = await start(admission=AdmissionPolicy.SLO)
    await harness.worker()
    await harness.deploy()
    hasty = generate_request((1,), 4_000)
    hasty.ttft_slo_ns = hasty.tpot_slo_ns = 100_000
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(harness, hasty)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(from_rpc_error(caught.value).metadata["retry_after_ms"]) >= 100
    assert (await collect(harness, generate_request()))[0] == answer((1, 2, 3), 8)


async def test_thousands_of_calls_at_the_same_moment_are_all_answered(scheduler: Harness) -> None:
    reasons = await asyncio.gather(
        *(refusal(scheduler, generate_request(model="nobody")) for _ in range(2_500))
    )
    assert set(reasons) == {ErrorReason.MODEL_NOT_FOUND}


async def test_equal_labels_are_independent_requests(scheduler: Harness) -> None:
    request = generate_request((3,), 30)
    request.label = "same"
    other = generate_request((4,), 4_000)
    other.label = "same"
    cancelled = scheduler.inference.Generate(other)
    await cancelled.read()
    kept = asyncio.create_task(collect(scheduler, request))
    cancelled.cancel()
    assert (await kept)[0] == answer((3,), 30)
    await scheduler.settled()


async def test_a_slow_reader_pauses_itself_and_nobody_else(start: Start) -> None:
    harness = await start(reader_backlog_tokens=16)
    worker = await harness.worker(StubSettings(step_s=0.0005))
    await harness.deploy()
    state = harness.server.driver.cluster.state
    async with narrow_channel(harness) as channel:
        slow = inference_pb2_grpc.InferenceServiceStub(channel).Generate(
            generate_request((1,), 4_000)
        )
        first = await slow.read()
        await until(lambda: any(s.paused for s in state.sequences.values()))
        fast, _ = await collect(harness, generate_request((2,), 2_000))
        assert fast == answer((2,), 2_000)
        steps = worker.steps
        await asyncio.sleep(0.05)
        assert worker.steps == steps  # a paused sequence costs its engine nothing
        (paused,) = state.sequences.values()
        assert paused.unread <= 32
        tokens = list(first.token_ids)
        while (message := await slow.read()) is not grpc.aio.EOF:
            tokens += message.token_ids
    assert tokens == answer((1,), 4_000)
    await harness.settled()


async def test_a_request_is_followed_under_its_caller_s_label(
    scheduler: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "aegaeon_scheduler.service.request_log")
    request = generate_request(count=1900)
    request.label = "mine"
    call = scheduler.inference.Generate(request)
    await call.read()
    (worker,) = scheduler.workers
    assert [sequence.spec.label for sequence in worker.sequences.values()] == ["mine"]
    call.cancel()
    await scheduler.settled()
    (line,) = [one for one in caplog.records if hasattr(one, "fields")]
    assert line.getMessage().startswith("request mine of m cancelled on n0/0 with ")
    assert line.fields["request_id"] == "mine"
