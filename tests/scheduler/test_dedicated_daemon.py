"""Dedicated engines through the daemon: registration, topology, and the hand-off on the wire."""

from __future__ import annotations

import grpc
import pytest

from aegaeon.rpc.status import from_rpc_error
from aegaeon.v1 import cluster_pb2
from tests.scheduler.conftest import Start
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
    assert snapshot.statistics.handed_off == 1
    assert [engine.tokens for engine in snapshot.engines] == [1, 7]
    assert (prefill.held, decode.imported) == (set(), 3)
