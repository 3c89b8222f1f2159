"""The documented experiments, on a small scale."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon_scheduler.simulator.catalog import H800, read_shapes
from aegaeon_scheduler.simulator.demand import Traffic
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.experiment import MODELS, SCALE, EqualModels
from aegaeon_scheduler.simulator.objective import Objective
from aegaeon_scheduler.simulator.policies import POLICIES
from aegaeon_scheduler.simulator.scenario import Scenario
from aegaeon_scheduler.simulator.suite import Part, find_parts, part_names
from aegaeon_scheduler.simulator.suite_report import write_page, write_part
from aegaeon_scheduler.simulator.sweep import Hardware, Point, capacity, lines_of
from tests.scheduler.simulator.worlds import LENGTHS

EQUAL = EqualModels(read_shapes(H800), LENGTHS, Objective.of_seconds(1, 0.03), seconds=10.0, seed=1)


def scenario(x: float) -> Scenario:
    return EQUAL.scenario(x, 0.5)


def small(axis: bool) -> Part:
    def scenarios() -> Iterator[Scenario]:
        return map(scenario, (2, 10, 30))

    between = scenario if axis else None
    hardware = Hardware(H800, 1, 2)
    return Part("models", "Few & small", hardware, MODELS, scenarios, between, 1.0)


@pytest.fixture(scope="module")
def points() -> list[Point]:
    return list(small(axis=True).points())


def test_capacity_is_known_to_one_step(points: list[Point]) -> None:
    for policy, line in lines_of(points).items():
        found = capacity(line)
        if found:
            xs = [x for x, _ in line]
            right = next(x for x in xs if x >= found)
            assert right - xs[xs.index(right) - 1] == 1.0, (policy, line)
    assert capacity(lines_of(points)["request-level"])


def test_a_page_has_every_part_and_its_picture(tmp_path: Path, points: list[Point]) -> None:
    write_part(tmp_path, small(axis=True), points)
    write_page(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "(#few--small)" in page
    assert "## Few & small" in page
    assert re.search(r"^\| 10 \|( [0-9.]+% \|| +\|)+$", page, re.MULTILINE)
    (picture,) = re.findall(r"!\[.*\]\((.*)\)", page)
    assert (tmp_path / picture).read_text().startswith("<svg")
    stored = json.loads((tmp_path / "models.json").read_text())
    assert set(stored["capacity"]) == {*POLICIES, "bound"}


def test_workloads_without_an_axis_show_no_capacity(tmp_path: Path) -> None:
    part = small(axis=False)
    write_part(tmp_path, part, list(part.points()))
    write_page(tmp_path)
    assert not list(tmp_path.glob("*.svg"))
    assert "Capacity at 90 %" not in (tmp_path / "README.md").read_text()


def test_the_kinds_of_a_mix_are_told_apart(tmp_path: Path) -> None:
    shapes = read_shapes(H800)
    demand = [
        *(Traffic(f"hot-{index}", shapes[2], 0.5, LENGTHS) for index in range(2)),
        Traffic("cold", shapes[0], 0.1, LENGTHS),
    ]

    def mixed(x: float) -> Scenario:
        return Scenario.drawn(f"at {x:g}", x, demand, seconds=20.0 * x, seed=1)

    policies = ("deadline", "request-level")
    part = Part(
        "mix",
        "A mix",
        Hardware(H800, 1, 2),
        SCALE,
        lambda: map(mixed, (1, 2)),
        mixed,
        1.0,
        policies,
    )
    write_part(tmp_path, part, list(part.points()))
    write_page(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "| kind | deadline | request-level |" in page
    assert "| hot | 100.0% | 100.0% |" in page
    assert "| cold | 100.0% | 100.0% |" in page


def test_parts_are_found_by_name() -> None:
    assert [part.name for part in find_parts("all")] == part_names()
    assert [part.name for part in find_parts("rates,workloads")] == ["rates", "workloads"]
    with pytest.raises(InputError, match="unknown part of the suite 'rate'; did you mean rates"):
        find_parts("rate")
