"""Metrics of cases small enough to count by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from aegaeon_scheduler.simulator.objective import Objective
from aegaeon_scheduler.simulator.report import write_requests
from aegaeon_scheduler.simulator.results import RequestRecord, SimulationResult
from aegaeon_scheduler.simulator.sweep import capacity
from aegaeon_scheduler.simulator.workload import Arrival

#: First token 100 after arrival, then one every 10.
OBJECTIVE = Objective(100, 10)


def record(times: list[int], arrival_ns: int = 1_000) -> RequestRecord:
    made = RequestRecord(Arrival(arrival_ns, "m", 5, len(times)), OBJECTIVE)
    for time in times:
        made.add_token(time)
    return made


def test_a_token_is_on_time_until_its_own_deadline() -> None:
    assert record([1_100, 1_110, 1_120]).tokens_on_time == 3
    assert record([1_101, 1_110, 1_121]).tokens_on_time == 1
    assert record([1_001, 1_002, 1_120]).tokens_on_time == 3  # ahead, then a pause within limits


def test_a_request_is_within_limits_only_with_every_gap() -> None:
    assert record([1_100, 1_110]).within_limits
    assert not record([1_101, 1_102]).within_limits
    assert not record([1_001, 1_012]).within_limits


def test_a_refused_request_misses_everything() -> None:
    refused = RequestRecord(Arrival(0, "m", 1, 6), refused=True)
    result = SimulationResult("p", [record([1_001, 1_002]), refused], engines=1)
    assert result.token_attainment == pytest.approx(2 / 8)
    assert result.request_attainment == pytest.approx(1 / 2)


def test_the_worst_tenth_of_models_shows_who_is_left_behind() -> None:
    records = [record([1_001]) for _ in range(19)]
    for index, each in enumerate(records):
        each.arrival = Arrival(1_000, f"m{index}", 5, 1)
    late = RequestRecord(Arrival(1_000, "late", 5, 1), OBJECTIVE)
    late.add_token(9_000)
    result = SimulationResult("p", [*records, late], engines=1)
    assert result.token_attainment == pytest.approx(19 / 20)
    assert result.worst_tenth == pytest.approx(1 / 2)
    assert result.token_attainment_by(lambda name: name[0]) == {"l": 0.0, "m": 1.0}


def test_a_token_after_the_end_is_an_error() -> None:
    with pytest.raises(AssertionError, match="after the end"):
        record([1_001]).add_token(1_002)


def test_requests_are_written_one_per_row(tmp_path: Path) -> None:
    result = SimulationResult("p", [record([1_001, 1_500])], engines=1)
    write_requests(tmp_path / "r.csv", result)
    (row,) = csv.DictReader((tmp_path / "r.csv").open())
    assert (row["policy"], row["model"], row["tokens_on_time"]) == ("p", "m", "1")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ([(10, 1.0), (20, 0.8)], 15.0),
        ([(10, 0.85), (20, 0.95), (30, 0.85)], 25.0),
        ([(10, 1.0), (20, 0.95)], None),
        ([(10, 0.5), (20, 0.4)], 0.0),
    ],
)
def test_capacity_is_where_the_line_last_falls_below(
    line: list[tuple[float, float]], found: float | None
) -> None:
    assert capacity(line) == pytest.approx(found)
