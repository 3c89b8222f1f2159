"""Results as files: CSV for tables, JSON for programs."""

from __future__ import annotations

import csv
from collections.abc import Sequence as Items
from pathlib import Path

from aegaeon_scheduler.simulator.picture import Chart
from aegaeon_scheduler.simulator.planner import Plan
from aegaeon_scheduler.simulator.results import SimulationResult
from aegaeon_scheduler.simulator.sweep import Point

_REQUEST_COLUMNS = (
    "policy",
    "arrival_s",
    "model",
    "input_tokens",
    "output_tokens",
    "tokens_on_time",
    "first_token_s",
    "last_token_s",
    "longest_gap_s",
    "refused",
)
_SUMMARY_COLUMNS = (
    "workload",
    "x",
    "policy",
    "token_attainment",
    "request_attainment",
    "worst_tenth",
    "busy",
    "switching",
    "idle",
    "switches",
    "steps",
)


def write_requests(path: Path, result: SimulationResult) -> None:
    """One CSV row per request, in order of arrival; times in seconds since the workload's start."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(_REQUEST_COLUMNS)
        for record in result.records:
            arrival = record.arrival
            times = (record.first_token_ns, record.last_token_ns, record.longest_gap_ns)
            out.writerow(
                [
                    result.policy,
                    f"{arrival.time_ns / 1e9:.3f}",
                    arrival.model,
                    arrival.input_tokens,
                    arrival.output_tokens,
                    record.tokens_on_time,
                    *("" if time < 0 else f"{time / 1e9:.3f}" for time in times),
                    int(record.refused),
                ]
            )


def write_summary(path: Path, points: Items[Point]) -> None:
    """One CSV row per simulation, and per bound."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, _SUMMARY_COLUMNS, extrasaction="ignore", restval="")
        out.writeheader()
        out.writerows(describe(point) for point in points)


def describe(point: Point) -> dict[str, str | float | int]:
    """A simulation as plain values; shares from 0 to 1, with four digits."""
    found: dict[str, str | float | int] = {
        "workload": point.title,
        "x": point.x,
        "policy": point.policy,
        "token_attainment": round(point.attainment, 4),
    }
    result = point.result
    if result is not None:
        found |= {
            "request_attainment": round(result.request_attainment, 4),
            "worst_tenth": round(result.worst_tenth, 4),
            "busy": round(result.busy_share, 4),
            "switching": round(result.switching_share, 4),
            "idle": round(result.idle_share, 4),
            "switches": result.switches,
            "steps": result.steps,
            "requests": len(result.records),
            "processor_seconds": round(point.seconds, 2),
            "events": point.events,
            "decision_us": round(1e6 * point.decision_seconds / max(point.events, 1), 2),
        }
    return found


def write_plan(path: Path, plans: Items[Plan]) -> None:
    """One CSV row per policy and number of engines."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(
            ("policy", "engines", "nodes", "mean", "lowest", "highest", "busy", "switching")
        )
        for plan in plans:
            for sample in plan.samples:
                shares = (sample.mean, sample.lowest, sample.highest, sample.busy, sample.switching)
                counts = (plan.policy, sample.engines, sample.nodes)
                out.writerow([*counts, *(f"{share:.4f}" for share in shares)])


def plan_chart(plans: Items[Plan]) -> Chart:
    """Attainment against engines, with the range of the draws, the targets and the first knee."""
    first = plans[0]
    return Chart(
        {plan.policy: [(sample.engines, sample.mean) for sample in plan.samples] for plan in plans},
        "engines",
        targets=[need.target for need in first.needs],
        bands={
            plan.policy: [(each.engines, each.lowest, each.highest) for each in plan.samples]
            for plan in plans
        },
        marks={} if first.knee is None else {first.knee: f"knee of {first.policy}: {first.knee}"},
    )
