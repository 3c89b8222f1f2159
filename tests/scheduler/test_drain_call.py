"""The Drain call of a daemon, with stub workers."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aegaeon.v1 import cluster_pb2, inference_pb2
from tests.scheduler.conftest import Harness, Start, until
from tests.scheduler.stub_settings import StubSettings


def generate(harness: Harness, count: int, prompt: int = 1):
    return harness.inference.Generate(
        inference_pb2.GenerateRequest(
            model="m",
            prompt_token_ids=[prompt],
            stop=inference_pb2.StopConditions(max_new_tokens=count, ignore_eos=True),
        )
    )


async def tokens_of(call) -> list[int]:
    return [token async for message in call for token in message.token_ids]


async def answers(harness: Harness, **fields: object) -> list[cluster_pb2.DrainResponse]:
    async with asyncio.timeout(10):
        return [one async for one in harness.cluster.Drain(cluster_pb2.DrainRequest(**fields))]


async def health(harness: Harness) -> str:
    answer = await health_pb2_grpc.HealthStub(harness.channel).Check(
        health_pb2.HealthCheckRequest()
    )
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


async def code_of(call) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tokens_of(call)
    return caught.value.code()


async def test_workers_can_be_stopped_one_after_another_under_load(start: Start) -> None:
    harness = await start()
    settings = [StubSettings(worker_index=index, step_s=0.005) for index in range(2)]
    workers = [await harness.worker(one) for one in settings]
    await harness.deploy()
    expected = await tokens_of(generate(harness, 60))
    running = [asyncio.create_task(tokens_of(generate(harness, 60))) for _ in range(6)]
    await until(lambda: sum(len(worker.sequences) for worker in workers) == 6)
    for worker, one in zip(workers, settings, strict=True):
        [*_, last] = await answers(harness, node_id="n0", worker_index=one.worker_index)
        assert (last.drained, last.remaining_sequences) == (True, 0)
        assert not worker.sequences
        await worker.goodbye()
        await harness.worker(one, serving=worker)
        running.append(asyncio.create_task(tokens_of(generate(harness, 60))))
    assert [await task for task in running] == [expected] * len(running)
    await harness.settled()


async def test_the_scheduler_drains_and_comes_back(scheduler: Harness) -> None:
    running = asyncio.create_task(tokens_of(generate(scheduler, 200)))
    await until(lambda: bool(scheduler.server.driver.cluster.state.sequences))
    watching = asyncio.create_task(answers(scheduler))
    await until(lambda: scheduler.server.driver.draining)
    assert await code_of(generate(scheduler, 3)) is grpc.StatusCode.UNAVAILABLE
    assert await health(scheduler) == "NOT_SERVING"
    assert len(await running) == 200
    assert [one.drained for one in await watching][-1]
    assert [one.drained for one in await answers(scheduler, resume=True)] == [False]
    assert await health(scheduler) == "SERVING"
    assert len(await tokens_of(generate(scheduler, 3))) == 3


async def test_a_drain_outlives_whoever_asked_for_it(scheduler: Harness) -> None:
    running = asyncio.create_task(tokens_of(generate(scheduler, 200)))
    await until(lambda: bool(scheduler.server.driver.cluster.state.sequences))
    call = scheduler.cluster.Drain(cluster_pb2.DrainRequest(node_id="n0"))
    first = await call.read()
    assert (first.drained, first.unserved_models) == (False, ["m"])
    call.cancel()
    [worker] = (await scheduler.runtime()).workers
    assert worker.draining
    waiting = asyncio.create_task(tokens_of(generate(scheduler, 3)))
    assert len(await running) == 200
    assert not waiting.done()
    await answers(scheduler, node_id="n0", resume=True)
    assert len(await waiting) == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"node_id": "nowhere"}, "'nowhere' has no registered worker"),
        ({"node_id": "n0", "worker_index": 5}, "no registered worker 5"),
        ({"worker_index": 0}, "without node_id"),
    ],
)
async def test_wrong_names_are_answered(
    scheduler: Harness, fields: dict[str, object], words: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=words) as caught:
        await answers(scheduler, **fields)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
