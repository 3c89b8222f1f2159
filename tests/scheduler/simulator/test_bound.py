"""No policy exceeds the bound, and where a case can be counted by hand it is near the truth."""

from __future__ import annotations

import random
from collections.abc import Sequence as Items

import pytest

from aegaeon_scheduler.simulator.bound import attainment_bound
from aegaeon_scheduler.simulator.catalog import H800, read_shapes
from aegaeon_scheduler.simulator.machines import Machines, assign_shapes
from aegaeon_scheduler.simulator.objective import DEFAULT_OBJECTIVE, Objective, Objectives
from aegaeon_scheduler.simulator.policies import POLICIES
from aegaeon_scheduler.simulator.simulation import Simulation
from aegaeon_scheduler.simulator.workload import Arrival

SECOND = 1_000_000_000
SHAPES = read_shapes(H800)


def bound(
    arrivals: Items[Arrival], engines: int, objective: Objective = DEFAULT_OBJECTIVE
) -> float:
    machines = Machines(H800, assign_shapes(arrivals, SHAPES), 1, engines)
    return attainment_bound(arrivals, machines, Objectives(objective))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("policy", ["deadline", "request-level"])
def test_no_policy_exceeds_the_bound(policy: str, seed: int) -> None:
    draw = random.Random(seed)
    models, engines = draw.randint(1, 12), draw.randint(1, 2)
    arrivals = sorted(
        (
            Arrival(
                round(draw.uniform(0, 8) * SECOND),
                f"m{draw.randrange(models)}",
                draw.choice((1, 20, 700)),
                draw.choice((1, 2, 40, 200)),
            )
            for _ in range(draw.randint(1, 60))
        ),
        key=lambda arrival: arrival.time_ns,
    )
    objectives = Objectives(Objective.of_seconds(draw.choice((0.2, 1)), draw.choice((0.015, 0.04))))
    machines = Machines(H800, assign_shapes(arrivals, SHAPES), 1, engines)
    controller = POLICIES[policy](machines, objectives)
    run = Simulation(policy, controller, machines.workers(), arrivals, objectives)
    most = attainment_bound(arrivals, machines, objectives)
    assert run.run().token_attainment <= most + 1e-9


def test_a_light_load_is_not_bounded() -> None:
    assert bound([Arrival(0, "m", 1, 10)], engines=1) == 1.0


def test_models_without_a_moment_to_spare_need_an_engine_each() -> None:
    # 8 engines, 9 requests whose tokens are due as fast as they can be made.
    arrivals = [Arrival(0, f"m{index}", 1, 1_000) for index in range(9)]
    step_ns = min(shape.profile.decode_ns(1, 0) for shape in SHAPES)
    share = bound(arrivals, 8, Objective(1, round(step_ns)))
    assert 0.5 < share < 1 - 1 / 18
    # Far apart, the same requests have time enough.
    apart = [Arrival(60 * index * SECOND, f"m{index}", 1, 1_000) for index in range(9)]
    assert bound(apart, 8, Objective(1, round(1.1 * step_ns))) == 1.0


def test_requests_that_overlap_share_passes_but_not_those_that_follow() -> None:
    # Alone, 1,000 tokens of Llama-2-13B take 12.6 s of the 40 s that they may take.
    objective = Objective.of_seconds(1, 0.039)
    together = [Arrival(0, "m", 1, 1_000) for _ in range(5)]
    assert bound(together, 1, objective) == 1.0
    crowd = [Arrival(0, f"m{index}", 1, 1_000) for index in range(9)]
    assert bound(crowd, 1, objective) < 0.6


def test_every_decoded_token_costs_time_of_its_own() -> None:
    # One pass may decode all of them, but then takes several times as long as a pass for one.
    crowd = [Arrival(0, "m", 1, 1_000) for _ in range(2_000)]
    assert bound(crowd, 1, Objective.of_seconds(1, 0.039)) < 0.7


def test_work_that_may_wait_is_not_counted_before_its_time() -> None:
    late = [Arrival(0, f"m{index}", 1, 1_000) for index in range(9)]
    assert bound(late, 1, Objective.of_seconds(200, 0.1)) == 1.0
