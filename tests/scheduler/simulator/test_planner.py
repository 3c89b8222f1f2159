"""The planner finds what trying every number of engines would find."""

from __future__ import annotations

import pytest

from aegaeon_scheduler.simulator.catalog import H800, read_shapes
from aegaeon_scheduler.simulator.demand import same_traffic
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.experiment import repeated
from aegaeon_scheduler.simulator.objective import Objective
from aegaeon_scheduler.simulator.planner import Planner, Sample, knee
from aegaeon_scheduler.simulator.scenario import Scenario
from aegaeon_scheduler.simulator.sweep import Hardware
from tests.scheduler.simulator.worlds import LENGTHS

TIGHT = Objective.of_seconds(2, 0.04)


def scenarios(models: int = 8, seeds: int = 2) -> list[Scenario]:
    demand = same_traffic(models, 0.4, read_shapes(H800), LENGTHS, TIGHT)
    return repeated(demand, 6.0, seeds)


@pytest.mark.parametrize("policy", ["deadline", "request-level"])
def test_the_fewest_engines_are_found(policy: str) -> None:
    cases = scenarios()
    plan = Planner(H800, cases, policy, engines_per_node=8).plan((0.8, 0.99))
    shares = {
        engines: [
            Hardware(H800, 1, engines).simulate(policy, case).token_attainment for case in cases
        ]
        for engines in range(1, 9)
    }
    for need in plan.needs:
        on_average = [n for n, each in shares.items() if sum(each) / len(each) >= need.target]
        everywhere = [n for n, each in shares.items() if min(each) >= need.target]
        assert need.on_average == on_average[0]
        assert need.in_every_scenario == everywhere[0]
    assert plan.needs[0].on_average != plan.needs[1].on_average
    assert plan.knee is not None


def test_nodes_are_equal_and_as_few_as_possible() -> None:
    sizes = list(Planner(H800, scenarios(), "deadline", engines_per_node=4, most=12)._sizes())
    assert sizes == [1, 2, 3, 4, 6, 8, 9, 12]


def test_what_engines_cannot_cure_ends_the_search() -> None:
    # The prompts alone take longer than their first tokens may.
    demand = same_traffic(2, 1.0, read_shapes(H800), [(4_000, 9), (10, 9)], Objective(30_000_000))
    plan = Planner(H800, repeated(demand, 10.0, 1), "deadline").plan((0.9,))
    assert plan.needs[0].on_average is None
    assert plan.samples[-1].engines < 512


@pytest.mark.parametrize("target", [0.0, 1.0, -1.0, float("nan")])
def test_targets_are_shares(target: float) -> None:
    with pytest.raises(InputError, match="must be between 0 and 1"):
        Planner(H800, scenarios(), "deadline").plan((target,))


def sample(engines: int, share: float) -> Sample:
    return Sample(engines, 1, (share,), 0.0, 0.0)


def test_the_knee_is_where_a_tenth_more_engines_gain_less_than_a_point() -> None:
    steep = [sample(10, 0.50), sample(20, 0.80), sample(30, 0.97)]
    assert knee(steep) is None
    # From 30 on, one engine gains 0.1 points and a tenth more 0.3 to 0.4.
    assert knee([*steep, sample(40, 0.98), sample(50, 0.98)]) == 30
    # A dip before the last rise is noise, no knee.
    assert knee([sample(10, 0.5), sample(11, 0.5), sample(20, 0.9), sample(30, 0.9)]) == 20
    assert knee([sample(10, 1.0)]) is None
