"""Runs of load as tables, files and pictures."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from aegaeon.load.arrivals import Limits
from aegaeon.load.report import Quantiles, distribution
from aegaeon.load.runs import Run
from aegaeon.replay import ReplayRecord

if TYPE_CHECKING:
    from aegaeon_scheduler.simulator.picture import Chart


def show(runs: Sequence[Run]) -> None:
    """On standard output."""
    for run in runs:
        report = run.report
        failed = ", ".join(f"{count} {name}" for name, count in report.failed.items())
        print(f"\n{report.title}: {report.requests} requests in {report.duration_s:.1f} s")
        print(f"  failed       {failed or 'none'}")
        print(f"  throughput   {report.requests_per_s:.2f} requests/s")
        print(f"               {report.tokens_per_s:.1f} tokens/s")
        print(f"  on time      {report.token_attainment:.2%} of tokens")
        print(f"               {report.request_attainment:.2%} of requests, in every gap")
        table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        table.add_column("seconds")
        for field in fields(Quantiles):
            table.add_column(field.name, justify="right")
        for name, found in (
            ("time to first token", report.ttft),
            ("time per output token", report.tpot),
            ("longest gap", report.longest_gap),
        ):
            values = asdict(found).values()
            table.add_row(name, *("-" if value is None else f"{value:.4f}" for value in values))
        Console().print(table)


def write(folder: Path, runs: Sequence[Run], limits: Limits) -> None:
    """A table of all requests, a summary, and pictures."""
    with (folder / "requests.csv").open("w", newline="", encoding="utf-8") as file:
        names = [field.name for field in fields(ReplayRecord)]
        writer = csv.DictWriter(file, ["run", *names])
        writer.writeheader()
        for run in runs:
            writer.writerows({"run": run.report.title, **asdict(one)} for one in run.records)
    text = json.dumps([asdict(run.report) for run in runs], indent=2) + "\n"
    (folder / "summary.json").write_text(text, encoding="utf-8")
    for name, chart in _charts(runs, limits).items():
        (folder / f"{name}.svg").write_text(chart.svg(), encoding="utf-8")


def _charts(runs: Sequence[Run], limits: Limits) -> Mapping[str, Chart]:
    from aegaeon_scheduler.simulator.picture import Chart

    charts = {}
    for name, label, limit, field in (
        ("ttft", "seconds to the first token", limits.ttft_s, "ttft_s"),
        ("tpot", "seconds per output token, mean of a request", limits.tpot_s, "tpot_s"),
    ):
        lines = {
            run.report.title.removesuffix(" requests/s per model"): distribution(
                getattr(record, field) for record in run.records
            )
            for run in runs
        }
        lines = {title: line for title, line in lines.items() if line}
        if lines:
            last = max(line[-1][0] for line in lines.values())
            marks = {limit: "limit"} if limit <= last else {}
            charts[name] = Chart(lines, label, "share of requests", marks=marks)
    rated = sorted(
        (run.report.rate, run.report.token_attainment)
        for run in runs
        if run.report.rate is not None
    )
    if len(rated) > 1:
        charts["attainment"] = Chart({"measured": rated}, "requests/s of each model")
    return charts
