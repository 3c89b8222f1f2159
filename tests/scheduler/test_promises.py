"""Admission that keeps promises: what is accepted is on time, what is not is told when to retry."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon.errors import ErrorReason, ResourceExhaustedError
from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.promises import Demand
from aegaeon_scheduler.core.values import AdmissionPolicy
from aegaeon_scheduler.simulator.core_controller import CoreController
from aegaeon_scheduler.simulator.objective import Objectives
from aegaeon_scheduler.simulator.results import SimulationResult
from aegaeon_scheduler.simulator.simulation import Simulation
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import MS
from tests.scheduler.simulator.worlds import arrivals, small_machines

SECOND = 1_000 * MS
MANY = 1_900


def serving(admission: AdmissionPolicy, *models: str) -> FakeClusterDriver:
    world = FakeClusterDriver(CoreConfig(admission=admission))
    world.add_worker(batch=64)
    world.settle()
    for model in models:
        world.deploy(model)
    world.settle()
    return world


def test_a_request_that_could_not_be_on_time_is_refused_with_a_hint_and_leaves_nothing() -> None:
    world = serving(AdmissionPolicy.SLO, "a", "b")
    for _ in range(3):
        world.submit(request("a", count=MANY))
    with pytest.raises(ResourceExhaustedError) as caught:
        world.submit(request("b", count=MANY, ttft_slo_ns=SECOND // 1_000))
    assert caught.value.reason is ErrorReason.QUEUE_FULL
    assert caught.value.metadata["limit"] == "ttft_slo_ns"
    assert int(caught.value.metadata["retry_after_ms"]) >= 100
    state = world.cluster.state
    assert (len(state.sequences), state.statistics.rejected) == (3, 1)
    assert world.cluster.audit() == []


def test_a_request_that_would_make_others_late_is_refused() -> None:
    names = [f"m{index}" for index in range(10)]
    world = serving(AdmissionPolicy.SLO, *names)
    [engine] = world.cluster.state.engines.values()
    tpot_ns = max(100_000, round(4 * engine.step_ns(names[0])))
    accepted = 0
    for name in names:  # a step of each takes a quarter of the time per token
        try:
            world.submit(request(name, count=MANY, ttft_slo_ns=SECOND, tpot_slo_ns=tpot_ns))
        except ResourceExhaustedError:
            break
        accepted += 1
    assert 2 <= accepted < 9


def test_limits_alone_accept_what_will_be_late() -> None:
    world = serving(AdmissionPolicy.LIMITS, "a")
    assert world.submit(request("a", count=MANY, ttft_slo_ns=100_000)).engine_id is not None


def simulated(admission: AdmissionPolicy) -> SimulationResult:
    """Far more than the engines can serve."""
    workload = arrivals(models=40, rate=0.75, seconds=12.0)
    bed = replace(small_machines(workload), nodes=1, engines_per_node=2)
    config = CoreConfig(admission=admission)
    controller = CoreController(Cluster(config), bed, Objectives())
    return Simulation("deadline", controller, bed.workers(), workload, Objectives()).run()


def test_past_capacity_what_is_accepted_is_on_time() -> None:
    kept, all_taken = simulated(AdmissionPolicy.SLO), simulated(AdmissionPolicy.LIMITS)
    accepted = [record for record in kept.records if not record.refused]
    wanted = sum(record.arrival.output_tokens for record in accepted)
    assert 0.1 < len(accepted) / len(kept.records) < 1
    on_time = sum(record.tokens_on_time for record in accepted) / wanted
    assert on_time > 0.97
    assert all_taken.token_attainment < on_time - 0.1


@given(
    first=st.integers(0, 10**10),
    last=st.integers(0, 10**10),
    until=st.lists(st.integers(0, 10**10), min_size=2, max_size=2),
)
def test_work_grows_with_time_and_covers_every_token_due(
    first: int, last: int, until: list[int]
) -> None:
    demand = Demand(first, last, 100 * MS, 10.0 * MS, 7.0, 3.0, SECOND)
    early, late = (demand.work_ns(at) for at in sorted(until))
    assert early <= late
    due = range(first, max(first, min(last, max(until))) + 1, 100 * MS)
    if max(until) >= first:
        assert late >= len(due) * 10 * MS
