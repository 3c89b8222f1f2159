"""Whatever the policy: every request ends once, memory is enough, and runs repeat exactly."""

from __future__ import annotations

import pytest

from aegaeon_scheduler.simulator.catalog import H800, read_shapes
from aegaeon_scheduler.simulator.experiment import EqualModels
from aegaeon_scheduler.simulator.objective import DEFAULT_OBJECTIVE
from aegaeon_scheduler.simulator.policies import DEFAULT_POLICY, POLICIES
from aegaeon_scheduler.simulator.sweep import Hardware
from tests.scheduler.simulator.worlds import LENGTHS, arrivals, simulate, small_machines

#: One model and little KV fit at a time.
TIGHT = 34_000_000_000


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pool_bytes", [TIGHT, 72_000_000_000])
def test_every_request_ends_once_and_memory_is_never_oversubscribed(
    policy: str, pool_bytes: int
) -> None:
    workload = arrivals()
    result = simulate(policy, workload, small_machines(workload, pool_bytes))
    assert len(result.records) == len(workload)
    for record in result.records:
        assert record.refused or record.tokens == record.arrival.output_tokens
    if policy != "static":
        assert not any(record.refused for record in result.records)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_workload_gives_the_same_times(policy: str) -> None:
    workload = arrivals(models=6)
    first, second = (simulate(policy, workload, small_machines(workload)) for _ in range(2))
    assert [(r.first_token_ns, r.last_token_ns) for r in first.records] == [
        (r.first_token_ns, r.last_token_ns) for r in second.records
    ]
    assert (first.busy_ns, first.switching_ns) == (second.busy_ns, second.switching_ns)


@pytest.mark.parametrize("policy", POLICIES)
def test_shares_of_time_add_up(policy: str) -> None:
    workload = arrivals(models=6)
    result = simulate(policy, workload, small_machines(workload))
    shares = (result.busy_share, result.switching_share, result.idle_share)
    assert all(0 <= share <= 1 for share in shares), shares
    assert sum(shares) == pytest.approx(1.0)


def test_the_default_policy_beats_the_others_past_their_capacity() -> None:
    workload = arrivals(models=56, rate=0.3, seconds=24)
    shares = {
        policy: simulate(policy, workload, small_machines(workload), audit=False).token_attainment
        for policy in POLICIES
    }
    best = shares.pop("deadline")
    assert best > 0.9, best
    assert all(share < best + 0.02 for share in shares.values()), (best, shares)
    assert shares["published"] < best - 0.1, (best, shares)


def test_a_minute_of_eighty_models_on_sixteen_engines_takes_under_ten_seconds() -> None:
    equal = EqualModels(read_shapes(H800), LENGTHS, DEFAULT_OBJECTIVE, seconds=60.0, seed=1)
    point = Hardware(H800, 2, 16).point(equal.scenario(80, 0.1), DEFAULT_POLICY)
    assert point.attainment > 0.99
    assert point.seconds < 10  # processor time: other work on the machine does not count
    assert 0 < point.decision_seconds < point.seconds
