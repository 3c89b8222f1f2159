"""Deploying and removing models through the daemon."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from aegaeon.errors import AegaeonError, ErrorReason
from aegaeon.rpc.status import from_rpc_error
from aegaeon.v1 import cluster_pb2, model_pb2
from aegaeon_scheduler.service.broadcast import MAX_BEHIND, Subscription
from tests.scheduler.conftest import Harness, Start, until
from tests.scheduler.requests import generate_request
from tests.scheduler.stub_model import answer
from tests.scheduler.stub_settings import StubSettings
from tests.scheduler.test_generate import collect, refusal


async def failure(harness: Harness, request: model_pb2.DeployModelRequest) -> AegaeonError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in harness.models.DeployModel(request):
            pass
    return from_rpc_error(caught.value)


def deploy_request(name: str = "m", **spec: object) -> model_pb2.DeployModelRequest:
    return model_pb2.DeployModelRequest(
        spec=model_pb2.ModelSpec(**{"name": name, "path": f"/models/{name}", **spec})
    )


async def test_progress_comes_before_exactly_one_result(start: Start) -> None:
    harness = await start()
    await harness.worker()
    *progress, last = await harness.deploy()
    states = [message.progress.state for message in progress]
    assert states[0] == model_pb2.REPLICA_STATE_LOADING
    assert states[-1] == model_pb2.REPLICA_STATE_READY
    assert list(last.result.ready_node_ids) == ["n0"]


async def test_deploying_again_changes_nothing(scheduler: Harness) -> None:
    *_, last = await scheduler.deploy()
    assert list(last.result.ready_node_ids) == ["n0"]
    assert len((await scheduler.runtime()).models) == 1


async def test_part_of_the_nodes_may_fail(start: Start) -> None:
    harness = await start()
    await harness.worker()
    await harness.worker(StubSettings(node_id="n1", weight_cache_bytes=10))
    *_, last = await harness.deploy(node_ids=["n0", "n1", "n2"])
    assert list(last.result.ready_node_ids) == ["n0"]
    reasons = {failed.node_id: ErrorReason(failed.error.reason) for failed in last.result.failed}
    assert reasons == {
        "n1": ErrorReason.INSUFFICIENT_MEMORY,
        "n2": ErrorReason.TOPOLOGY_INVALID,
    }


async def test_a_broken_checkpoint_is_named(start: Start) -> None:
    harness = await start()
    await harness.worker(StubSettings(broken={"m"}))
    error = await failure(harness, deploy_request())
    assert error.reason is ErrorReason.CHECKPOINT_INVALID
    assert "truncated" in error.message
    assert list((await harness.models.ListModels(model_pb2.ListModelsRequest())).models) == []


async def test_too_large_a_model_names_both_sizes(start: Start) -> None:
    harness = await start()
    await harness.worker(StubSettings(weight_cache_bytes=1000))
    error = await failure(harness, deploy_request())
    assert error.reason is ErrorReason.INSUFFICIENT_MEMORY
    assert error.metadata["needed_bytes"] == str(1 << 20)
    assert error.metadata["available_bytes"] == "1000"


async def test_another_spec_under_the_same_name_is_a_conflict(scheduler: Harness) -> None:
    error = await failure(scheduler, deploy_request(max_model_len=100))
    assert error.reason is ErrorReason.MODEL_CONFLICT


@pytest.mark.parametrize(
    "spec",
    [
        {"name": ""},
        {"name": "x" * 257},
        {"name": "a\nb"},
        {"path": ""},
        {"ttft_slo_ns": 1},
        {"tpot_slo_ns": 2**63},
        {"tool_parser": "pythonic"},
        {"tool_parser": "Hermes"},
    ],
)
async def test_wrong_specs_are_refused(start: Start, spec: dict[str, object]) -> None:
    harness = await start()
    error = await failure(harness, deploy_request(**spec))
    assert error.reason is ErrorReason.INVALID_FIELD
    assert error.metadata["field"] == f"spec.{next(iter(spec))}"


async def test_without_a_worker_nothing_can_be_deployed(start: Start) -> None:
    harness = await start()
    error = await failure(harness, deploy_request())
    assert error.reason is ErrorReason.TOPOLOGY_INVALID


async def test_breaking_the_call_does_not_stop_the_load(start: Start) -> None:
    harness = await start()
    await harness.worker(StubSettings(load_s=0.2))
    call = harness.models.DeployModel(deploy_request())
    await call.read()
    assert await refusal(harness, generate_request()) is ErrorReason.MODEL_NOT_READY
    call.cancel()
    state = harness.server.driver.cluster.state
    await until(lambda: state.model_state("m").name == "READY")
    assert not state.models["m"].operations


async def test_undeploying_drains_first(scheduler: Harness) -> None:
    running = asyncio.create_task(collect(scheduler, generate_request((1,), 100)))
    state = scheduler.server.driver.cluster.state
    await until(lambda: bool(state.sequences))
    request = model_pb2.UndeployModelRequest(name="m")
    leaving = asyncio.ensure_future(scheduler.models.UndeployModel(request))
    await until(lambda: state.model_state("m").name == "DRAINING")
    assert await refusal(scheduler, generate_request()) is ErrorReason.MODEL_DRAINING
    assert (await running)[0] == answer((1,), 100)
    assert list((await leaving).removed_node_ids) == ["n0"]
    assert await refusal(scheduler, generate_request()) is ErrorReason.MODEL_NOT_FOUND
    assert scheduler.workers[0].models == {}
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scheduler.models.UndeployModel(request)
    assert from_rpc_error(caught.value).reason is ErrorReason.MODEL_NOT_FOUND


async def test_an_idle_model_leaves_for_a_new_one(start: Start) -> None:
    harness = await start()
    await harness.worker(StubSettings(weight_cache_bytes=2 << 20))
    await harness.deploy("a")
    await harness.deploy("b")
    await collect(harness, generate_request(model="a"))  # b is now the least recently used
    *_, last = await harness.deploy("c")
    assert [(e.node_id, e.model) for e in last.result.evicted] == [("n0", "b")]
    assert set(harness.workers[0].models) == {"a", "c"}


async def test_busy_models_stay(start: Start) -> None:
    harness = await start()
    await harness.worker(StubSettings(weight_cache_bytes=1 << 20))
    await harness.deploy("a")
    call = harness.inference.Generate(generate_request((1,), 4_000, "a"))
    await call.read()
    error = await failure(harness, deploy_request("b"))
    assert error.reason is ErrorReason.INSUFFICIENT_MEMORY
    call.cancel()
    await harness.settled()


async def test_a_topology_waits_for_its_workers(start: Start) -> None:
    harness = await start()
    topology = cluster_pb2.ApplyTopologyRequest(
        nodes=[cluster_pb2.NodeTopology(node_id="n0", num_engines=2)]
    )
    waiting = asyncio.ensure_future(harness.cluster.ApplyTopology(topology, timeout=10))
    await harness.worker()
    await harness.worker(StubSettings(worker_index=1))
    assert [engine.engine_id for engine in (await waiting).engines] == ["n0/0", "n0/1"]


async def test_missing_workers_are_named_at_the_deadline(start: Start) -> None:
    harness = await start()
    await harness.worker()
    topology = cluster_pb2.ApplyTopologyRequest(
        nodes=[cluster_pb2.NodeTopology(node_id="n0", num_engines=2)]
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await harness.cluster.ApplyTopology(topology, timeout=0.5)
    error = from_rpc_error(caught.value)
    assert error.reason is ErrorReason.DEADLINE_EXCEEDED
    assert "n0/1" in error.message


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"num_engines": 1, "num_decode_engines": 1}, ErrorReason.INVALID_FIELD),
        ({"num_prefill_engines": 1}, ErrorReason.INVALID_FIELD),
        ({"num_decode_engines": 1}, ErrorReason.INVALID_FIELD),
        ({}, ErrorReason.INVALID_FIELD),
        ({"num_engines": 1, "weight_cache_bytes": 1 << 40}, ErrorReason.TOPOLOGY_INVALID),
    ],
)
async def test_a_topology_that_cannot_be_had_is_refused(
    start: Start, node: dict[str, int], reason: ErrorReason
) -> None:
    harness = await start()
    await harness.worker()
    topology = cluster_pb2.ApplyTopologyRequest(
        nodes=[cluster_pb2.NodeTopology(node_id="n0", **node)]
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await harness.cluster.ApplyTopology(topology, timeout=5)
    assert from_rpc_error(caught.value).reason is reason


async def test_watchers_see_events_in_order(scheduler: Harness) -> None:
    call = scheduler.cluster.WatchEvents(cluster_pb2.WatchEventsRequest())
    await call.initial_metadata()
    await collect(scheduler, generate_request())
    kinds: list[str] = []
    numbers: list[int] = []
    while len(kinds) < 5:
        event = (await call.read()).event
        kinds.append(event.WhichOneof("event") or "")
        numbers.append(event.number)
    assert kinds == ["request", "turn", "turn", "request", "turn"]
    assert numbers == list(range(numbers[0], numbers[0] + 5))
    call.cancel()


async def test_statistics_can_be_reset(scheduler: Harness) -> None:
    await collect(scheduler, generate_request(count=5))
    before = await scheduler.runtime()
    assert (before.statistics.finished, before.statistics.tokens) == (1, 5)
    await scheduler.cluster.ResetStatistics(cluster_pb2.ResetStatisticsRequest())
    after = await scheduler.runtime()
    assert after.statistics.tokens == after.engines[0].tokens == 0
    assert [model.spec.name for model in after.models] == ["m"]


async def test_whoever_waits_is_told_when_the_daemon_stops(start: Start) -> None:
    harness = await start()
    await harness.worker(StubSettings(load_s=5))
    deploying = asyncio.create_task(failure(harness, deploy_request()))
    topology = cluster_pb2.ApplyTopologyRequest(
        nodes=[cluster_pb2.NodeTopology(node_id="nowhere", num_engines=1)]
    )
    waiting = asyncio.ensure_future(harness.cluster.ApplyTopology(topology))
    state = harness.server.driver.cluster.state
    await until(lambda: state.model_state("m").name == "LOADING")
    harness.server.driver.end_all()
    assert (await deploying).reason is ErrorReason.SHUTTING_DOWN
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await waiting
    assert from_rpc_error(caught.value).reason is ErrorReason.SHUTTING_DOWN


async def test_a_watcher_that_is_too_far_behind_is_marked() -> None:
    subscription = Subscription()
    for number in range(MAX_BEHIND):
        subscription.push(cluster_pb2.ClusterEvent(number=number))
    assert not subscription.overflowed
    subscription.push(cluster_pb2.ClusterEvent())
    assert subscription.overflowed
    assert len(await subscription.next()) == MAX_BEHIND
