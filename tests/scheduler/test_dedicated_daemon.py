"""Dedicated engines through the daemon: registration, topology, and the hand-off on the wire."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from aegaeon.rpc.status import from_rpc_error
from aegaeon.v1 import cluster_pb2
from aegaeon_scheduler.core.policies import SchedulingPolicy
from tests.scheduler.conftest import Start, until
from tests.scheduler.requests import generate_request
from tests.scheduler.stub_model import answer
from tests.scheduler.stub_settings import StubSettings
from tests.scheduler.test_generate import collect


async def test_a_topology_names_workers_with_another_role(start: Start) -> None:
    harness = await start()
    await harness.worker()
    await harness.worker(StubSettings(worker_index=1, role="DECODE"))
    topology = cluster_pb2.ApplyTopologyRequest(
        nodes=[cluster_pb2.NodeTopology(node_id="n0", num_prefill_engines=1, num_decode_engines=1)]
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await harness.cluster.ApplyTopology(topology, timeout=0.5)
    assert from_rpc_error(caught.value).message.endswith(
        "workers are missing: n0/0 as prefill engine; start them, or ask for fewer engines"
    )


async def test_tokens_come_from_both_engines_of_a_dedicated_pair(start: Start) -> None:
    harness = await start()
    roles = ("PREFILL", "DECODE")
    prefill, decode = [
        await harness.worker(StubSettings(worker_index=index, role=role))
        for index, role in enumerate(roles)
    ]
    topology = cluster_pb2.ApplyTopologyRequest(
        nodes=[cluster_pb2.NodeTopology(node_id="n0", num_prefill_engines=1, num_decode_engines=1)]
    )
    answered = await harness.cluster.ApplyTopology(topology, timeout=5)
    assert [cluster_pb2.EngineRole.Name(engine.role) for engine in answered.engines] == [
        f"ENGINE_ROLE_{role}" for role in roles
    ]
    await harness.deploy()
    tokens, _ = await collect(harness, generate_request((3, 1, 4), 8))
    assert tokens == answer((3, 1, 4), 8)
    await harness.settled()
    snapshot = await harness.runtime()
    statistics = snapshot.statistics
    assert (statistics.handed_off, statistics.recomputed) == (1, 0)
    assert (statistics.hand_off_time_ns, statistics.import_time_ns) == (5, 7)
    assert statistics.imported_bytes == 1024
    assert [engine.tokens for engine in snapshot.engines] == [1, 7]
    assert (prefill.held, decode.imported) == (set(), 3)


async def test_watchers_are_told_where_and_why_a_handed_off_request_runs(start: Start) -> None:
    harness = await start(policy=SchedulingPolicy.PUBLISHED)
    for index, role in enumerate(("PREFILL", "DECODE")):
        await harness.worker(StubSettings(worker_index=index, role=role))
    await harness.deploy()
    call = harness.cluster.WatchEvents(cluster_pb2.WatchEventsRequest())
    await call.initial_metadata()
    await collect(harness, generate_request((3, 1, 4), 8))
    turns: list[tuple[str, int, str]] = []
    requests: list[tuple[str, int]] = []
    while len(requests) < 3:
        event = (await call.read()).event
        if event.WhichOneof("event") == "request":
            requests.append((event.request.engine_id, event.request.change))
        elif event.turn.change == cluster_pb2.TurnChanged.CHANGE_QUEUED:
            turns.append((event.turn.engine_id, event.turn.stage, event.turn.reason))
    assert requests == [
        ("n0/0", cluster_pb2.RequestChanged.CHANGE_ACCEPTED),
        ("n0/1", cluster_pb2.RequestChanged.CHANGE_HANDED_OFF),
        ("n0/1", cluster_pb2.RequestChanged.CHANGE_FINISHED),
    ]
    assert turns == [
        (
            "n0/0",
            cluster_pb2.TURN_STAGE_PREFILL,
            "group of prompts, first come first served",
        ),
        ("n0/1", cluster_pb2.TURN_STAGE_UNSPECIFIED, "only batch"),
    ]
    call.cancel()


async def test_a_decode_engine_that_comes_idle_steals_a_batch(start: Start) -> None:
    harness = await start(policy=SchedulingPolicy.PUBLISHED, stealing_min_batch_gap=2)
    await harness.worker(StubSettings(worker_index=0, role="PREFILL"))
    # So slow that its first two batches keep it until the other one is there.
    slow = await harness.worker(StubSettings(worker_index=1, role="DECODE", step_s=0.2))
    for name in ("a", "b", "c"):
        await harness.deploy(name)
    running = [
        asyncio.create_task(collect(harness, generate_request((number,), 6, model=name)))
        for number, name in enumerate(("a", "b", "c"), start=1)
    ]
    statistics = harness.server.driver.cluster.state.statistics
    await until(lambda: statistics.handed_off == 3)
    thief = await harness.worker(StubSettings(worker_index=2, role="DECODE"), serving=slow)
    await until(lambda: statistics.stolen_batches == 1)
    tokens = [(await one)[0] for one in running]
    assert tokens == [answer((number,), 6) for number in (1, 2, 3)]
    await harness.settled()
    assert thief.imported == 1
    assert thief.turn_log == ["c"]
    assert not any(worker.held for worker in harness.workers)
