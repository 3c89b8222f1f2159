"""Streams that are cancelled midway leave nothing behind, however many they are."""

from __future__ import annotations

import asyncio

import grpc
import psutil
import pytest

from aegaeon import LLMService
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import inference_pb2, inference_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.integration.daemons import until
from tests.integration.workload import MIB, ask, tokens_of

#: Streams until memory has levelled off.
WARM_UP = 500
STREAMS = 500
AT_ONCE = 25
#: What either daemon may grow by: some 30 KB per stream would show.
GROWTH_BYTES = 16 * MIB


def daemons_of(service: LLMService) -> dict[str, psutil.Process]:
    """Scheduler and worker by name."""
    [worker] = service.runtime().workers
    [scheduler] = [
        child
        for child in psutil.Process().children()
        if service.address in child.cmdline() and "aegaeon_scheduler" in child.cmdline()
    ]
    return {"scheduler": scheduler, "worker": psutil.Process(worker.pid)}


def memory(service: LLMService) -> dict[str, int]:
    return {name: process.memory_info().rss for name, process in daemons_of(service).items()}


async def cancel_streams(address: str, model: str, count: int) -> int:
    """Open streams, read one message of each, cancel; how many had a token."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> int:
            async with slots:
                call = stub.Generate(
                    inference_pb2.GenerateRequest(
                        model=model,
                        label="cancelled",
                        prompt_token_ids=[5 + number % 500] * (1 + number % 40),
                        stop=inference_pb2.StopConditions(max_new_tokens=20_000, ignore_eos=True),
                    )
                )
                response = await call.read()
                assert isinstance(response, inference_pb2.GenerateResponse)
                call.cancel()
                return len(response.token_ids) > 0

        return sum(await asyncio.gather(*(one(number) for number in range(count))))


def sequences_of_worker(service: LLMService) -> int:
    [worker] = service.runtime().workers
    with grpc.insecure_channel(worker.address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        status = stub.GetStatus(worker_pb2.GetStatusRequest(), timeout=5)
    return int(status.memory.sequences)


def settled(service: LLMService) -> bool:
    runtime = service.runtime()
    idle = not runtime.engines[0].current_model and not runtime.engines[0].sequences
    return not runtime.active_requests and idle and not sequences_of_worker(service)


@pytest.fixture
def model(tiny_models: list[ModelSpec]) -> ModelSpec:
    return tiny_models[0]


def test_cancelled_streams_leave_no_sequence_and_no_memory(
    service: LLMService, model: ModelSpec
) -> None:
    wanted = tokens_of(service.serve([ask(model, [5], 16)])[0])
    assert asyncio.run(cancel_streams(service.address, model.name, WARM_UP)) == WARM_UP
    until(lambda: settled(service), what="no sequence is left")
    before = memory(service)
    service.reset()
    assert asyncio.run(cancel_streams(service.address, model.name, STREAMS)) == STREAMS
    until(lambda: settled(service), what="no sequence is left")
    assert service.runtime().statistics.cancelled == STREAMS
    grown = {name: size - before[name] for name, size in memory(service).items()}
    assert max(grown.values()) < GROWTH_BYTES, grown
    assert tokens_of(service.serve([ask(model, [5], 16)])[0]) == wanted


def test_a_stream_that_is_left_is_freed_at_once(service: LLMService, model: ModelSpec) -> None:
    stream = service.stream(ask(model, [5], 20_000))
    next(stream)
    assert service.runtime().active_requests == 1
    stream.close()
    until(lambda: settled(service), 2.0)
