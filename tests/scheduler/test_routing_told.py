"""What a scheduler tells of its routing: in events, in the snapshot, to Prometheus, in its file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from aegaeon.config.schema import RoutingPolicyName
from aegaeon.v1 import cluster_pb2, inference_pb2
from aegaeon_scheduler.core.notices import PrefixPull
from aegaeon_scheduler.core.saved import SavedCluster, SavedTopology
from aegaeon_scheduler.core.values import PlacementPolicy, RoutingPolicy
from aegaeon_scheduler.service.state_file import decode, encode
from tests.metrics.scraping import scrape
from tests.scheduler.conftest import Harness, Start
from tests.scheduler.requests import generate_request
from tests.scheduler.stub_settings import StubSettings

NODES = ("n0", "n1")
PROMPT = tuple(range(10, 110))


async def two_replicas(harness: Harness) -> None:
    for node in NODES:
        await harness.worker(StubSettings(node_id=node))
    await harness.deploy(replica_count=2)


async def serve(harness: Harness, prompt: Sequence[int], **fields: object) -> None:
    request = generate_request(prompt, 4)
    request.MergeFrom(inference_pb2.GenerateRequest(**fields))
    async for _ in harness.inference.Generate(request):
        pass
    await harness.settled()


async def test_events_snapshot_and_metrics_agree(start: Start, tmp_path: Path) -> None:
    harness = await start(metrics_listen=f"unix:{tmp_path}/m")
    await two_replicas(harness)
    watching = harness.cluster.WatchEvents(cluster_pb2.WatchEventsRequest())
    await watching.initial_metadata()
    for label, prompt in (("first", PROMPT), ("other", PROMPT[::-1]), ("again", PROMPT)):
        await serve(harness, prompt, label=label)
    await serve(harness, PROMPT, label="alone", no_prefix_caching=True)
    accepted = {}
    while len(accepted) < 4:
        event = (await watching.read()).event
        if event.request.change == cluster_pb2.RequestChanged.CHANGE_ACCEPTED:
            accepted[event.request.label] = event.request
    watching.cancel()
    home = accepted["first"].engine_id
    # Both engines are idle, so ties rotate: the third request would have gone there by itself.
    assert [accepted[label].engine_id == home for label in ("other", "again")] == [False, True]
    expected = {label: request.expected_cached_tokens for label, request in accepted.items()}
    assert expected == {"first": 0, "other": 0, "again": 96, "alone": 0}
    assert {request.reason for request in accepted.values()} == {"fewest requests"}

    await serve(harness, PROMPT, label="kept")
    snapshot = await harness.runtime()
    statistics = snapshot.statistics
    assert statistics.expected_cached_tokens == 192
    assert statistics.prefix_followed + statistics.prefix_passed_over <= 1
    followed = {engine.engine_id: engine.prefix_followed for engine in snapshot.engines}
    assert sum(followed.values()) == statistics.prefix_followed
    assert snapshot.routing_policy == cluster_pb2.ROUTING_POLICY_PREFIX_AWARE
    assert snapshot.prefix_index_blocks == 2 * 6
    samples = await scrape(f"{tmp_path}/m")
    assert samples["aegaeon_expected_cached_prompt_tokens_total", "m"] == 192
    assert samples["aegaeon_prefix_index_blocks",] == 12
    results = {key[2]: n for key, n in samples.items() if key[0].startswith("aegaeon_prefix_rou")}
    assert sum(results.values()) == statistics.prefix_followed + statistics.prefix_passed_over


@pytest.mark.parametrize("own", RoutingPolicy)
async def test_a_topology_without_a_routing_policy_leaves_the_scheduler_its_own(
    start: Start, own: RoutingPolicy
) -> None:
    harness = await start(routing=own)
    await two_replicas(harness)
    for asked in cluster_pb2.RoutingPolicy.values():
        nodes = [cluster_pb2.NodeTopology(node_id=node, num_engines=1) for node in NODES]
        request = cluster_pb2.ApplyTopologyRequest(nodes=nodes, routing_policy=asked)
        await harness.cluster.ApplyTopology(request)
        assert (await harness.runtime()).routing_policy == (asked or own)


@pytest.mark.parametrize("routing", RoutingPolicy)
def test_the_state_file_keeps_it_and_the_release_before_understands_it(
    routing: RoutingPolicy,
) -> None:
    topology = SavedTopology(NODES, PlacementPolicy.LEAST_LOADED, routing, 0)
    known = SavedCluster(topology)
    text = encode(known)
    assert decode(text) == known
    assert json.loads(text)["topology"]["routing"] in (1, 2), "all that it knows"
    assert decode(encode(replace(known, topology=None))).topology is None


def test_every_policy_has_one_name_everywhere() -> None:
    names = {policy.name: policy.value for policy in RoutingPolicy}
    contract = cluster_pb2.RoutingPolicy.items()
    assert {f"ROUTING_POLICY_{name}": number for name, number in names.items()} | {
        "ROUTING_POLICY_UNSPECIFIED": 0
    } == dict(contract)
    assert sorted(get_args(RoutingPolicyName)) == sorted(
        name.lower().replace("_", "-") for name in names
    )
    pulls = {f"PREFIX_PULL_{pull.name}": pull.value for pull in PrefixPull if pull}
    assert pulls | {"PREFIX_PULL_UNSPECIFIED": 0} == dict(cluster_pb2.PrefixPull.items())
