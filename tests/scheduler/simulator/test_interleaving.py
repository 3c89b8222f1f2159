"""While capacity lasts, the default policy keeps every gap between tokens below TPOT."""

from __future__ import annotations

import pytest

from aegaeon_scheduler.simulator.catalog import H800, read_shapes
from aegaeon_scheduler.simulator.machines import Machines, assign_shapes
from aegaeon_scheduler.simulator.results import SimulationResult
from aegaeon_scheduler.simulator.workload import Arrival
from tests.scheduler.simulator.worlds import simulate

SECOND = 1_000_000_000


def one_engine(*times_s: float, tokens: int = 400) -> SimulationResult:
    """A request to another model at each of the times, on one engine."""
    workload = [
        Arrival(round(time * SECOND), f"m_{index}", 600, tokens)
        for index, time in enumerate(times_s)
    ]
    shapes = assign_shapes(workload, read_shapes(H800))
    return simulate("deadline", workload, Machines(H800, shapes, 1, 1))


@pytest.mark.parametrize("times_s", [(0, 0), (0, 2), (0, 2, 4), (0, 0, 0), (0, 0.1, 3)])
def test_models_that_fit_the_device_share_it_without_a_gap(times_s: tuple[float, ...]) -> None:
    result = one_engine(*times_s)
    assert result.request_attainment == 1.0
    assert result.switches == 1, "weights were not fetched beside the turns"


def test_a_model_that_does_not_fit_waits_as_long_as_it_can() -> None:
    # 26, 17.7, 15.2 and again 26 GB of weights: the fourth waits for one of the others to end.
    result = one_engine(0, 0, 0, 1, tokens=150)
    assert result.request_attainment == 1.0


def test_when_not_all_can_be_on_time_step_by_step_turns_are_long_and_deadlines_are_met() -> None:
    result = one_engine(*[0.5 * index for index in range(8)], tokens=600)
    assert result.token_attainment > 0.97
    assert result.request_attainment < 1.0
