"""Attaching, topology, replicas and snapshots against a stub scheduler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aegaeon import LLMService, NodeConfig
from aegaeon.deployment import DeployProgress, EvictedReplica
from aegaeon.errors import ConfigError, ModelLoadError, NotFoundError, UnavailableError
from aegaeon.models import ModelSpec
from aegaeon.snapshots import NodePlacement, NodeRouting
from aegaeon.v1 import cluster_pb2
from tests.client.conftest import RunningStub


def test_the_topology_and_the_cached_models_are_applied(stub: RunningStub, tmp_path: Path) -> None:
    spec = ModelSpec("tiny", str(tmp_path), dtype="float32", max_model_len=77, ttft_slo_s=2.5)
    nodes = [NodeConfig("a", 0, 0, 2, cached_models=[spec]), NodeConfig("b", 0, 0, 1)]
    with LLMService(nodes, address=stub.address, model_placement_policy="round-robin"):
        pass
    [topology] = stub.state.topologies
    assert [(node.node_id, node.num_engines) for node in topology.nodes] == [("a", 2), ("b", 1)]
    assert topology.placement_policy == cluster_pb2.PLACEMENT_POLICY_ROUND_ROBIN
    assert topology.routing_policy == cluster_pb2.ROUTING_POLICY_UNSPECIFIED, "the scheduler's own"
    [deploy] = stub.state.deployed
    assert list(deploy.node_ids) == ["a"]
    assert (deploy.spec.name, deploy.spec.path, deploy.spec.max_model_len) == (
        "tiny",
        str(tmp_path),
        77,
    )
    assert (deploy.spec.ttft_slo_ns, deploy.spec.tpot_slo_ns) == (2_500_000_000, 0)


def test_a_service_starts_from_the_server_section(
    stub: RunningStub, tmp_path: Path, write_yaml: Callable[[str], Path]
) -> None:
    path = write_yaml(
        "server: {nnodes: 2, num_engines: 1, startup_models: [b], "
        "request_routing_policy: round-robin}\n"
        "models: [{name: a, path: .}, {name: b, path: .}]\n"
    )
    with LLMService.from_config(path, address=stub.address):
        pass
    [topology] = stub.state.topologies
    assert [node.node_id for node in topology.nodes] == ["node_0", "node_1"]
    assert topology.routing_policy == cluster_pb2.ROUTING_POLICY_ROUND_ROBIN
    assert [(d.spec.name, list(d.node_ids)) for d in stub.state.deployed] == [
        ("b", ["node_0", "node_1"])
    ]


def test_dedicated_engines_and_work_stealing_come_from_the_server_section(
    stub: RunningStub, write_yaml: Callable[[str], Path]
) -> None:
    path = write_yaml(
        "server: {num_prefill_engines: 3, num_decode_engines: 5, decode_work_stealing: true, "
        "decode_work_stealing_min_batch_gap: 4}\n"
    )
    with LLMService.from_config(path, address=stub.address):
        pass
    [topology] = stub.state.topologies
    [node] = topology.nodes
    assert (node.num_engines, node.num_prefill_engines, node.num_decode_engines) == (0, 3, 5)
    assert topology.decode_work_stealing_min_batch_gap == 4


def test_without_numbers_a_node_has_one_engine_for_each_stage(
    stub: RunningStub, write_yaml: Callable[[str], Path]
) -> None:
    with LLMService.from_config(write_yaml("server: {nnodes: 1}\n"), address=stub.address):
        pass
    [topology] = stub.state.topologies
    assert (topology.nodes[0].num_prefill_engines, topology.nodes[0].num_decode_engines) == (1, 1)
    assert topology.decode_work_stealing_min_batch_gap == 0


def test_sizes_that_were_given_are_demanded_of_a_running_cluster(stub: RunningStub) -> None:
    with LLMService([NodeConfig("a", 0, 0, 1, cpu_num_slabs=5)], address=stub.address):
        pass
    [node] = stub.state.topologies[0].nodes
    assert (node.cpu_num_slabs, node.cpu_slab_bytes, node.weight_cache_bytes) == (5, 0, 0)


def test_the_address_may_come_from_the_environment(
    stub: RunningStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AEGAEON_ADDRESS", stub.address)
    with LLMService() as service:
        assert service.address == stub.address


def test_a_model_that_cannot_be_cached_fails_the_start(stub: RunningStub, tmp_path: Path) -> None:
    stub.state.fail_deploy = True
    node = NodeConfig("a", 0, 0, 1, cached_models=[ModelSpec("tiny", str(tmp_path))])
    with pytest.raises(ModelLoadError, match="half a file"):
        LLMService([node], address=stub.address)


def test_nobody_at_the_address_is_an_error_in_time(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no scheduler answers at unix:.*nobody"):
        LLMService(address=f"unix:{tmp_path}/nobody", startup_timeout_s=0.5)


def test_wrong_arguments_are_named(stub: RunningStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AEGAEON_ADDRESS", raising=False)
    node = NodeConfig("a", 0, 0, 1)
    with pytest.raises(ConfigError, match="AEGAEON_ADDRESS"):
        LLMService()
    with pytest.raises(ConfigError, match="'a' is given twice"):
        LLMService([node, node])
    with pytest.raises(ConfigError, match=r"cluster_config\[0\]: expected a NodeConfig"):
        LLMService(["node"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="request_routing_policy = 'best'"):
        LLMService([node], request_routing_policy="best")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="scheduling_policy = 'best'"):
        LLMService([node], scheduling_policy="best")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has its own, see its option --policy"):
        LLMService([node], address=stub.address, scheduling_policy="published")
    with pytest.raises(ConfigError, match="expected an integer of at least 2"):
        LLMService([node], decode_work_stealing=True, decode_work_stealing_min_batch_gap=1)


async def test_replicas_come_and_go_with_progress_and_partial_failure(
    service: LLMService, stub: RunningStub, tmp_path: Path
) -> None:
    spec = ModelSpec("tiny", str(tmp_path))
    progress: list[DeployProgress] = []
    outcome = await service.deploy_model_replicas(spec, 2, on_progress=progress.append)
    assert outcome.ready == ("node_0",)
    assert isinstance(outcome.failed["node_1"], ModelLoadError)
    assert outcome.evicted == (EvictedReplica("node_0", "old"),)
    assert progress == [DeployProgress("node_0", "loading", 1, 2)]
    assert (await service.undeploy_model_replicas(spec)).removed == ("node_0",)
    with pytest.raises(NotFoundError, match="tiny"):
        await service.undeploy_model_replicas("tiny")
    with pytest.raises(ConfigError, match="replica_count = 0"):
        await service.deploy_model_replicas(spec, 0)


async def test_total_failure_to_deploy_raises(
    service: LLMService, stub: RunningStub, tmp_path: Path
) -> None:
    stub.state.fail_deploy = True
    with pytest.raises(ModelLoadError, match="half a file"):
        await service.deploy_model_replicas(ModelSpec("tiny", str(tmp_path)), node_ids=["a"])
    assert list(stub.state.deployed[-1].node_ids) == ["a"]


def test_snapshots_tell_of_routing_and_placement(service: LLMService) -> None:
    service.reset()
    assert [worker.node_id for worker in service.runtime().workers] == ["node_0"]
    assert service.request_routing_snapshot() == {"node_0": NodeRouting(routed=7, outstanding=2)}
    assert service.model_placement_stats_snapshot() == {
        "node_0": NodePlacement(placed=1, evicted=0, ready_models=("echo",))
    }
