"""Where replicas and requests go."""

from __future__ import annotations

import pytest

from aegaeon.errors import AegaeonError, ErrorReason
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.expectation import NodeExpectation
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.replica import IllegalTransitionError, Replica, ReplicaState
from aegaeon_scheduler.core.values import PlacementPolicy, RoutingPolicy
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import PACKED, facts


def nodes_of(world: FakeClusterDriver, model: str) -> list[str]:
    return [node.node_id for node, _ in world.cluster.state.replicas(model)]


def cluster(*caches: int, config: CoreConfig | None = None) -> FakeClusterDriver:
    """One engine on each of several nodes with the given weight caches."""
    world = FakeClusterDriver(config)
    for i, cache in enumerate(caches):
        world.add_worker(f"n{i}", cache=cache)
    world.settle()
    return world


def deploy(
    world: FakeClusterDriver, name: str, count: int = 1, node_ids: tuple[str, ...] = ()
) -> commands.DeployFinished:
    operation = world.deploy(name, count, node_ids)
    world.settle()
    result = world.results[operation]
    assert isinstance(result, commands.DeployFinished)
    return result


def test_free_cache_goes_before_eviction() -> None:
    world = cluster(PACKED, 3 * PACKED)
    deploy(world, "x", node_ids=("n0",))
    deploy(world, "y", node_ids=("n1",))
    assert deploy(world, "z").ready_node_ids == ("n1",)
    assert nodes_of(world, "x") == ["n0"]


def test_among_fitting_nodes_the_less_busy_one_wins() -> None:
    world = cluster(5 * PACKED, 2 * PACKED)
    deploy(world, "x", node_ids=("n0",))
    world.submit(request("x", count=50))
    assert deploy(world, "y").ready_node_ids == ("n1",)


def test_then_more_free_cache_then_fewer_models_then_the_id() -> None:
    world = cluster(2 * PACKED, 3 * PACKED, 2 * PACKED)
    assert deploy(world, "x").ready_node_ids == ("n1",)
    assert deploy(world, "y").ready_node_ids == ("n0",)


def test_only_idle_models_are_evicted() -> None:
    world = cluster(PACKED, PACKED)
    deploy(world, "busy", node_ids=("n0",))
    deploy(world, "idle", node_ids=("n1",))
    world.submit(request("busy", count=1_900))
    operation = world.deploy("new")
    for _ in range(20):
        for worker in world.workers.values():
            while worker.inbox:
                worker.take()
            world.deliver(worker, len(worker.outbox))
        while world.inspections:
            world.answer_inspection()
    result = world.results[operation]
    assert isinstance(result, commands.DeployFinished)
    assert result.evicted == (("n1", "idle"),)
    assert nodes_of(world, "new") == ["n1"]
    assert nodes_of(world, "idle") == []


def test_a_replica_count_is_a_minimum() -> None:
    world = cluster(500, 500, 500)
    assert deploy(world, "x", 2).ready_node_ids == ("n0", "n1")
    assert deploy(world, "x", 1).ready_node_ids == ("n0", "n1")
    assert deploy(world, "x", 3).ready_node_ids == ("n0", "n1", "n2")


def test_round_robin_takes_the_nodes_in_turn() -> None:
    world = cluster(500, 500, 500, config=CoreConfig(placement=PlacementPolicy.ROUND_ROBIN))
    placed = [deploy(world, name).ready_node_ids[0] for name in "wxyz"]
    assert placed == ["n0", "n1", "n2", "n0"]


def test_nodes_outside_the_topology_get_no_replica() -> None:
    world = cluster(500, 1_000)
    expected = (NodeExpectation("n0", 1),)
    world.apply(
        events.TopologyApplied(
            expected, PlacementPolicy.LEAST_LOADED, RoutingPolicy.LEAST_OUTSTANDING
        )
    )
    assert deploy(world, "x", 2).ready_node_ids == ("n0",)


def test_a_model_larger_than_every_cache_names_the_numbers() -> None:
    world = cluster(PACKED - 1, 10)
    error = deploy(world, "x").error
    assert error is not None
    assert error.reason is ErrorReason.INSUFFICIENT_MEMORY
    assert error.metadata["needed_bytes"] == str(PACKED)


def test_operations_on_one_model_run_one_after_another() -> None:
    world = cluster(500)
    first, second, third = world.deploy("x"), world.undeploy("x"), world.deploy("x")
    world.settle()
    assert list(world.results) == [first, second, third]
    assert nodes_of(world, "x") == ["n0"]


def test_requests_go_to_the_node_with_the_fewest_and_ties_rotate() -> None:
    world = cluster(500, 500)
    deploy(world, "x", 2)
    engines = [world.submit(request("x", count=50)).engine_id for _ in range(6)]
    assert sorted(engines) == ["n0/0"] * 3 + ["n1/0"] * 3  # type: ignore[type-var]


def test_round_robin_routing_ignores_the_load() -> None:
    world = cluster(500, 500, config=CoreConfig(routing=RoutingPolicy.ROUND_ROBIN))
    deploy(world, "x", 2)
    deploy(world, "y", node_ids=("n0",))
    for _ in range(5):
        world.submit(request("y", count=50))
    engines = [world.submit(request("x", count=50)).engine_id for _ in range(4)]
    assert engines == ["n0/0", "n1/0", "n0/0", "n1/0"]


def test_an_engine_with_the_model_at_hand_is_preferred_until_it_is_far_ahead() -> None:
    world = FakeClusterDriver(CoreConfig(policy=SchedulingPolicy.ROUND_ROBIN, affinity_slack=3))
    world.add_worker("n0", 0)
    world.add_worker("n0", 1)
    world.settle()
    deploy(world, "x")
    engines = [world.submit(request("x", count=50)).engine_id for _ in range(6)]
    assert len(set(engines[:4])) == 1
    assert len(set(engines)) == 2


def test_what_can_never_fit_a_pool_is_refused_with_both_sizes() -> None:
    world = cluster(500)
    big = world.cluster.state
    deploy(world, "x")
    model = big.models["x"]
    model.facts = type(facts("x"))(
        fingerprint="x",
        packed_bytes=9_000,
        kv_block_bytes=100,
        kv_block_tokens=16,
        vocab_size=1_000,
        max_model_len=2_000,
        eos_token_ids=(2,),
    )
    with pytest.raises(AegaeonError) as caught:
        world.submit(request("x", count=500))
    assert caught.value.reason is ErrorReason.INSUFFICIENT_MEMORY
    assert caught.value.metadata == {"needed_bytes": "12200", "available_bytes": "10000"}
    world.submit(request("x", count=100))


def test_a_replica_cannot_leave_its_lifecycle() -> None:
    legal = {
        ("ABSENT", "LOADING"),
        ("LOADING", "READY"),
        ("LOADING", "FAILED"),
        ("READY", "DRAINING"),
        ("READY", "FAILED"),
        ("DRAINING", "ABSENT"),
        ("DRAINING", "FAILED"),
        ("FAILED", "LOADING"),
        ("FAILED", "ABSENT"),
    }
    for before in ReplicaState:
        for after in ReplicaState:
            replica = Replica("m", "n", before)
            if (before.name, after.name) in legal:
                replica.move(after)
                assert replica.state is after
            else:
                with pytest.raises(IllegalTransitionError):
                    replica.move(after)


def test_sequences_of_a_replaced_worker_go_to_a_living_engine() -> None:
    world = FakeClusterDriver()
    world.add_worker("n0", 0)
    world.add_worker("n0", 1)
    world.settle()
    deploy(world, "x")
    sequences = [world.submit(request("x", count=50)) for _ in range(20)]
    world.add_worker("n0", 0)
    assert {sequence.engine_id for sequence in sequences} == {"n0/1"}
    world.settle()
    assert all(len(sequence.generated) == 50 for sequence in sequences)


def test_a_drain_goes_on_when_the_engine_that_it_waited_for_is_lost() -> None:
    world = FakeClusterDriver()
    workers = [world.add_worker("n0", index) for index in range(2)]
    world.settle()
    deploy(world, "x")
    sequence = world.submit(request("x", count=50))
    world.apply(events.CancelRequested(sequence.sequence_id))
    operation = world.undeploy("x")
    assert operation not in world.results  # the worker has not confirmed the end yet
    world.lose(next(w for w in workers if w.inbox))
    world.settle()
    assert operation in world.results
    assert nodes_of(world, "x") == []
