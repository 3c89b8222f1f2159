"""Conversations on several replicas: what routing by kept prefixes is for, and what it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.statistics import Statistics
from aegaeon_scheduler.core.values import RoutingPolicy
from aegaeon_scheduler.simulator.catalog import H800, read_shapes
from aegaeon_scheduler.simulator.conversations import Conversations
from aegaeon_scheduler.simulator.core_controller import CoreController
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.objective import Objectives
from aegaeon_scheduler.simulator.results import SimulationResult
from aegaeon_scheduler.simulator.simulation import Simulation
from aegaeon_scheduler.simulator.workload import Arrival

MODEL = "Qwen2.5-7B"
TALK = Conversations(MODEL, 1.0, instructions=8, instruction_tokens=400, pause_s=2.0, tpot_s=0.02)
USUAL, AWARE = RoutingPolicy.LEAST_OUTSTANDING, RoutingPolicy.PREFIX_AWARE


def serve(
    arrivals: Sequence[Arrival],
    routing: RoutingPolicy,
    policy: SchedulingPolicy = SchedulingPolicy.DEADLINE,
    pool_bytes: int = H800.pool_bytes,
    engines_per_node: int = 1,
) -> tuple[SimulationResult, Statistics]:
    """Three nodes with a replica each."""
    device = replace(H800, pool_bytes=pool_bytes)
    shapes = {MODEL: read_shapes(device, [MODEL])[0]}
    machines = Machines(device, shapes, 3, engines_per_node)
    cluster = Cluster(CoreConfig(routing=routing, policy=policy))
    controller = CoreController(cluster, machines, Objectives(), replicas=3)
    result = Simulation("", controller, machines.workers(), arrivals, Objectives()).run()
    assert cluster.audit() == []
    return result, cluster.state.statistics


def times_of(result: SimulationResult) -> list[tuple[int, int, int]]:
    return [(r.first_token_ns, r.last_token_ns, r.longest_gap_ns) for r in result.records]


def test_a_turn_begins_with_everything_said_before() -> None:
    arrivals = TALK.draw(40, seed=3)
    assert arrivals == TALK.draw(40, seed=3)
    assert [a.time_ns for a in arrivals] == sorted(a.time_ns for a in arrivals)
    by_beginning: dict[tuple[int, ...], list[Arrival]] = {}
    for arrival in arrivals:
        assert arrival.input_tokens == len(arrival.tokens)
        # The instructions, and the first token of a message that nobody else has.
        by_beginning.setdefault(tuple(arrival.tokens[:401]), []).append(arrival)
    talks = by_beginning.values()
    assert max(map(len, talks)) > 3
    for talk in talks:
        for before, after in pairwise(talk):
            said = [*before.tokens, *[0] * before.output_tokens]
            assert list(after.tokens[: len(said)]) == said
            assert len(after.tokens) > len(said)
    assert len({tuple(arrival.tokens[:400]) for arrival in arrivals}) == 8


def test_more_is_found_and_first_tokens_come_sooner() -> None:
    arrivals = TALK.draw(40, seed=1)
    usual, usual_counts = serve(arrivals, USUAL)
    aware, counts = serve(arrivals, AWARE)
    assert counts.cached_tokens > 1.3 * usual_counts.cached_tokens
    assert counts.expected_cached_tokens == pytest.approx(counts.cached_tokens, rel=0.02)
    waited = [
        sum(r.first_token_ns - r.arrival.time_ns for r in result.records)
        for result in (aware, usual)
    ]
    assert waited[0] < 0.9 * waited[1]


@pytest.mark.parametrize("policy", SchedulingPolicy)
@pytest.mark.parametrize("engines_per_node", [1, 2])
def test_without_common_beginnings_every_token_comes_at_the_same_moment(
    policy: SchedulingPolicy, engines_per_node: int
) -> None:
    arrivals = [replace(arrival, tokens=()) for arrival in TALK.draw(20, seed=2)]
    (usual, _), (aware, counts) = (
        serve(arrivals, routing, policy, engines_per_node=engines_per_node)
        for routing in (USUAL, AWARE)
    )
    assert times_of(aware) == times_of(usual)
    assert counts.expected_cached_tokens == counts.cached_tokens == 0


@pytest.mark.parametrize("policy", SchedulingPolicy)
def test_what_does_not_fit_is_forgotten_and_every_request_ends(policy: SchedulingPolicy) -> None:
    arrivals = TALK.draw(20, seed=4)
    shape = read_shapes(H800, [MODEL])[0]
    tight = shape.packed_bytes + 12_000 * shape.kv_token_bytes
    result, counts = serve(arrivals, AWARE, policy, pool_bytes=tight)
    assert all(record.ended for record in result.records)
    assert 0 < counts.cached_tokens <= counts.prompt_tokens
