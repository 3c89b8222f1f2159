"""A scheduler that has just started waits for what workers of an earlier one may still tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import grpc
import pytest

from aegaeon.errors import ErrorReason
from aegaeon.rpc.status import from_rpc_error
from aegaeon.v1 import cluster_pb2, inference_pb2, model_pb2
from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.service.rejoining import Rejoining
from tests.scheduler.conftest import Harness, Start, until
from tests.scheduler.requests import generate_request, submit
from tests.scheduler.stub_model import answer
from tests.scheduler.stub_settings import StubSettings
from tests.scheduler.stub_worker import StubWorker
from tests.scheduler.test_generate import collect, refusal
from tests.scheduler.test_session import Client

#: The tests say when the window is over.
NEVER_NS = 3_600_000_000_000
T = TypeVar("T")


async def began(harness: Harness, call: Awaitable[T]) -> asyncio.Task[T]:
    """The call, once the scheduler lets it wait."""
    rejoining = harness.server.driver.rejoining
    before = rejoining.waiting

    async def run() -> T:
        return await call

    task = asyncio.create_task(run())
    await until(lambda: rejoining.waiting > before or task.done())
    assert not task.done(), task
    return task


async def reason(call: Awaitable[Any]) -> ErrorReason:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value).reason


@pytest.fixture
async def served(scheduler: Harness) -> StubWorker:
    """A worker with the model ``m``, which an earlier scheduler had it load."""
    return scheduler.workers[0]


@pytest.fixture
async def again(start: Start) -> Harness:
    """A scheduler that has started and knows nothing yet."""
    return await start(rejoin_window_ns=NEVER_NS)


async def test_a_request_waits_for_the_worker_that_has_its_model(
    again: Harness, served: StubWorker
) -> None:
    asked = await began(again, collect(again, generate_request((4,), 12)))
    await again.worker(serving=served)
    assert (await asked)[0] == answer((4,), 12)
    await again.settled()


async def test_what_is_not_deployed_is_refused_once_the_window_is_over(start: Start) -> None:
    harness = await start(rejoin_window_ns=1_000_000)
    await harness.worker()
    assert await refusal(harness, generate_request(model="x")) is ErrorReason.MODEL_NOT_FOUND
    request = model_pb2.GetModelRequest(name="x")
    assert await reason(harness.models.GetModel(request)) is ErrorReason.MODEL_NOT_FOUND
    undeploy = model_pb2.UndeployModelRequest(name="x")
    assert await reason(harness.models.UndeployModel(undeploy)) is ErrorReason.MODEL_NOT_FOUND
    assert not (await harness.models.ListModels(model_pb2.ListModelsRequest())).models


async def test_requests_of_a_session_wait_each_for_itself(
    again: Harness, served: StubWorker
) -> None:
    client = Client(again.inference)
    reading = asyncio.create_task(client.read())
    rejoining = again.server.driver.rejoining
    for stream_id, model in enumerate(("m", "lost", "cancelled", "late"), 1):
        timeout_ns = 1_000_000 if model == "late" else 0
        await client.call.write(submit(stream_id, generate_request((4,), 12, model), timeout_ns))
    await until(lambda: 4 in client.errors)
    assert client.errors[4].reason == ErrorReason.DEADLINE_EXCEEDED.value
    assert rejoining.waiting == 3
    cancel = inference_pb2.SessionCancel(stream_id=3)
    await client.call.write(inference_pb2.SessionRequest(cancel=cancel))
    await until(lambda: 3 in client.finished)
    assert client.finished[3] == inference_pb2.FINISH_REASON_CANCELLED
    await again.worker(serving=served)
    await until(lambda: 1 in client.finished)
    assert client.tokens[1] == answer((4,), 12)
    await until(lambda: rejoining.waiting == 1)
    await client.call.done_writing()
    rejoining.end()
    await reading
    assert client.errors[2].reason == ErrorReason.MODEL_NOT_FOUND.value
    await again.settled()


async def test_nothing_waits_for_a_client_that_has_gone(again: Harness) -> None:
    client = Client(again.inference)
    await client.call.write(submit(1, generate_request()))
    asked = again.inference.Generate(generate_request())
    await until(lambda: again.server.driver.rejoining.waiting == 2)
    client.call.cancel()
    asked.cancel()
    await until(lambda: again.server.driver.rejoining.waiting == 0)
    again.assert_empty()


async def test_more_requests_than_are_admitted_do_not_wait(start: Start) -> None:
    harness = await start(rejoin_window_ns=NEVER_NS, max_requests=1)
    asked = await began(harness, collect(harness, generate_request()))
    assert await refusal(harness, generate_request()) is ErrorReason.QUEUE_FULL
    harness.server.driver.rejoining.end()
    assert await reason(asked) is ErrorReason.MODEL_NOT_FOUND


async def test_models_are_told_once_all_are_known(again: Harness, served: StubWorker) -> None:
    one = await began(again, again.models.GetModel(model_pb2.GetModelRequest(name="m")))
    listed = await began(again, again.models.ListModels(model_pb2.ListModelsRequest()))
    await again.worker(serving=served)
    assert (await one).model.spec.name == "m"
    assert not listed.done()
    again.server.driver.rejoining.end()
    assert [model.spec.name for model in (await listed).models] == ["m"]


async def test_a_model_can_be_undeployed_that_nobody_has_reported_yet(
    again: Harness, served: StubWorker
) -> None:
    request = model_pb2.UndeployModelRequest(name="m")
    gone = await began(again, again.models.UndeployModel(request))
    worker = await again.worker(serving=served)
    again.server.driver.rejoining.end()
    assert list((await gone).removed_node_ids) == [worker.settings.node_id]
    assert not worker.models


async def test_a_deployment_finds_what_is_deployed_already(
    again: Harness, served: StubWorker
) -> None:
    deployed = await began(again, again.deploy())
    await again.worker(StubSettings(node_id="other"))
    home = await again.worker(serving=served)
    again.server.driver.rejoining.end()
    assert list((await deployed)[-1].result.ready_node_ids) == [home.settings.node_id]


async def test_a_deployment_goes_on_where_a_client_has_declared_the_nodes(again: Harness) -> None:
    deployed = await began(again, again.deploy())
    worker = await again.worker()
    node = cluster_pb2.NodeTopology(node_id=worker.settings.node_id, num_engines=1)
    await again.cluster.ApplyTopology(cluster_pb2.ApplyTopologyRequest(nodes=[node]))
    assert list((await deployed)[-1].result.ready_node_ids) == [worker.settings.node_id]


async def test_who_waits_is_told_when_the_scheduler_stops(again: Harness) -> None:
    name = "m"
    calls = [
        await began(again, collect(again, generate_request())),
        await began(again, again.models.GetModel(model_pb2.GetModelRequest(name=name))),
        await began(again, again.models.ListModels(model_pb2.ListModelsRequest())),
        await began(again, again.models.UndeployModel(model_pb2.UndeployModelRequest(name=name))),
        await began(again, again.deploy()),
    ]
    await again.server.stop()
    assert [await reason(call) for call in calls] == [ErrorReason.SHUTTING_DOWN] * len(calls)


@pytest.mark.parametrize(("ready_after", "parts"), [(0, 8), (10, 10), (1000, 16)])
async def test_a_worker_that_has_registered_is_given_time_to_be_dialled(
    monkeypatch: pytest.MonkeyPatch, ready_after: int, parts: int
) -> None:
    state = Cluster(CoreConfig()).state
    fake = SimpleNamespace(ready=not ready_after)
    state.engines[1] = cast(Engine, fake)
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)
        fake.ready = len(slept) >= ready_after

    monkeypatch.setattr(asyncio, "sleep", sleep)
    rejoining = Rejoining(state, 8_000_000_000)
    rejoining.begin()
    await rejoining.until_all_known()
    assert slept == [1.0] * parts
