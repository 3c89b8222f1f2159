"""``aegaeon simulate``: policies against workloads, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from aegaeon.cli import options

if TYPE_CHECKING:
    from aegaeon_scheduler.simulator.experiment import Experiment
    from aegaeon_scheduler.simulator.sweep import Hardware, Point


def simulate(
    policies: options.Policies = "",
    workload: options.Workloads = None,
    models: options.ModelCounts = "80",
    rates: options.Rates = "0.1",
    mix: options.Mix = None,
    scales: options.Scales = "1",
    profile: options.Profile = "",
    data: options.Data = None,
    lengths: options.Lengths = "synth-80-0.1-1.0-1.0",
    seconds: options.Seconds = 120.0,
    seed: options.Seed = 1,
    device: options.Device = "H800",
    nodes: options.Nodes = 2,
    engines: options.Engines = 16,
    link: options.Link = None,
    prefetch: options.Prefetch = True,
    ttft_s: options.TtftS = 10.0,
    tpot_s: options.TpotS = 0.1,
    suite: options.Suite = "",
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Run scheduling policies on simulated devices, and count the deadlines that they meet.

    Without --workload and --mix, Poisson arrivals are drawn for --models models at --rates.
    """
    from aegaeon_scheduler.simulator import experiment
    from aegaeon_scheduler.simulator.catalog import DATA
    from aegaeon_scheduler.simulator.objective import Objective
    from aegaeon_scheduler.simulator.policies import POLICIES, parse_policies

    if suite:
        _run_suite(suite, out)
        return
    names = parse_policies(policies) if policies else list(POLICIES)
    hardware = experiment.find_hardware(device, nodes, engines, link, prefetch)
    objective = Objective.of_seconds(ttft_s, tpot_s)
    shapes = experiment.find_shapes(profile, hardware.device, data or DATA)
    if workload:
        chosen = experiment.replayed(workload, shapes, objective)
    elif mix is not None:
        chosen = experiment.mixed(mix, hardware.device, data or DATA, scales, seconds, seed)
    else:
        drawn = experiment.find_lengths(lengths)
        equal = experiment.EqualModels(shapes, drawn, objective, seconds, seed)
        chosen = equal.varied(models, rates)
    _run(hardware, chosen, names, out, as_json)


def _run_suite(names: str, out: Path | None) -> None:
    from aegaeon_scheduler.simulator.errors import InputError
    from aegaeon_scheduler.simulator.suite import find_parts
    from aegaeon_scheduler.simulator.suite_report import write_page, write_part
    from aegaeon_scheduler.simulator.tables import open_folder

    if out is None:
        raise InputError("--suite writes a folder; name it with --out")
    open_folder(out)
    for part in find_parts(names):
        points = []
        for point in part.points():
            points.append(point)
            print(
                f"{part.name:12} {point.title:40} {point.policy:14} {point.attainment:7.1%}",
                flush=True,
            )
        write_part(out, part, points)
        write_page(out)


def _run(
    hardware: Hardware, chosen: Experiment, policies: list[str], out: Path | None, as_json: bool
) -> None:
    from aegaeon_scheduler.simulator.report import write_requests
    from aegaeon_scheduler.simulator.tables import open_folder

    if out is not None:
        open_folder(out)
    points: list[Point] = []
    for scenario in chosen.scenarios:
        scenario_points = list(hardware.points(scenario, policies))
        points += scenario_points
        if not as_json:
            _show(scenario.title, scenario_points)
        for point in scenario_points:
            if out is not None and point.result is not None:
                name = "-".join(["requests", point.policy, *scenario.title.split()])
                write_requests(out / f"{name}.csv", point.result)
    _conclude(points, chosen.x_label, out, as_json)


def _show(title: str, points: list[Point]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    requests = next(len(point.result.records) for point in points if point.result)
    table = Table(
        title=f"{title}: {requests} requests",
        title_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("policy", no_wrap=True, min_width=max(len(each.policy) for each in points))
    for name in ("tokens", "worst 10%", "requests", "busy", "switch", "idle", "cpu s"):
        table.add_column(name, justify="right")
    for point in points:
        row = [point.policy, f"{point.attainment:.2%}"]
        if point.result is not None:
            result = point.result
            shares = (result.busy_share, result.switching_share, result.idle_share)
            row += [
                f"{result.worst_tenth:.1%}",
                f"{result.request_attainment:.2%}",
                *(f"{share:.1%}" for share in shares),
            ]
            row.append(f"{point.seconds:.1f}")
        table.add_row(*row)
    Console().print(table)


def _conclude(points: list[Point], x_label: str, out: Path | None, as_json: bool) -> None:
    from aegaeon_scheduler.simulator.picture import Chart
    from aegaeon_scheduler.simulator.report import describe, write_summary
    from aegaeon_scheduler.simulator.sweep import capacities, lines_of

    found = capacities(points)
    if as_json:
        rows = [describe(point) for point in points]
        print(json.dumps({"x": x_label, "points": rows, "capacity": found}, indent=2))
    elif found:
        print(f"\nCapacity where 90 % of token deadlines are met, {x_label}:")
        lines = lines_of(points)
        for policy, x in found.items():
            line = lines[policy]
            text = f"{x:.3g}" if x else f"less than {line[0][0]:g}"
            print(f"  {policy:14} " + (f"more than {line[-1][0]:g}" if x is None else text))
    if out is not None:
        write_summary(out / "summary.csv", points)
        picture = Chart(lines_of(points), x_label).svg()
        (out / "attainment.svg").write_text(picture, encoding="utf-8")
