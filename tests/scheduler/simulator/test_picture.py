"""Pictures are well-formed, and put points where they belong."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from aegaeon_scheduler.simulator.picture import Chart

SVG = "{http://www.w3.org/2000/svg}"


def texts(root: ElementTree.Element) -> list[str | None]:
    return [element.text for element in root.iter(f"{SVG}text")]


def test_every_line_has_its_points_and_its_name() -> None:
    lines = {"a<b": [(10.0, 1.0), (20.0, 0.5)], "other": [(10.0, 0.0), (20.0, 0.25)]}
    root = ElementTree.fromstring(Chart(lines, "models & more").svg())
    assert {"a<b", "other", "models & more", "token deadlines met"} <= set(texts(root))
    first, second = (
        [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        for line in root.iter(f"{SVG}polyline")
    )
    (left, top), (right, middle) = first
    bottom = second[0][1]
    assert left < right
    assert middle - top == pytest.approx((bottom - top) / 2)
    assert second[1][1] == pytest.approx(bottom - (bottom - top) / 4)
    assert len(list(root.iter(f"{SVG}circle"))) == 4


def test_both_colour_schemes_are_served() -> None:
    assert "prefers-color-scheme: dark" in Chart({"a": [(1, 1)]}, "x").svg()


@pytest.mark.parametrize(
    ("xs", "ticks"),
    [
        ((2, 5), ["2", "3", "4", "5"]),
        ((0.4, 2.4), ["0.5", "1", "1.5", "2"]),
        ((40, 400), ["50", "100", "150", "200", "250", "300", "350", "400"]),
        ((7, 7), ["7"]),
    ],
)
def test_ticks_are_few_round_numbers(xs: tuple[float, float], ticks: list[str]) -> None:
    root = ElementTree.fromstring(Chart({"a": [(x, 1.0) for x in xs]}, "x").svg())
    assert [t for t in texts(root) if t and t[-1].isdigit()] == ticks


def test_targets_bands_and_marks_are_drawn() -> None:
    chart = Chart(
        {"a": [(1, 0.5), (2, 1.0)]},
        "engines",
        targets=(0.9, 0.99),
        bands={"a": [(1, 0.4, 0.6), (2, 0.9, 1.0)]},
        marks={2: "knee: 2"},
    )
    root = ElementTree.fromstring(chart.svg())
    assert {"90%", "99%", "knee: 2"} <= set(texts(root))
    (band,) = root.iter(f"{SVG}polygon")
    assert len(band.attrib["points"].split()) == 4
