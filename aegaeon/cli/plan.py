"""``aegaeon plan``: how many engines a set of models needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from aegaeon.cli import options

if TYPE_CHECKING:
    from aegaeon_scheduler.simulator.planner import Plan


def plan(
    models: options.ModelCount = 40,
    rate: options.Rate = 0.1,
    profile: options.Profile = "",
    data: options.Data = None,
    input_tokens: options.InputTokens = None,
    output_tokens: options.OutputTokens = None,
    lengths: options.Lengths = "synth-80-0.1-1.0-1.0",
    ttft_s: options.TtftS = 10.0,
    tpot_s: options.TpotS = 0.1,
    mix: options.Mix = None,
    workload: options.Workload = None,
    device: options.Device = "H800",
    link: options.Link = None,
    engines_per_node: options.EnginesPerNode = 8,
    most: options.MostEngines = 512,
    targets: options.Targets = "0.9,0.99",
    policies: options.Policies = "deadline",
    seconds: options.PlanSeconds = None,
    seeds: options.Seeds = 3,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Find out how many engines hold the limits, and where more of them stop to pay.

    For the quick case, --models equal models at --rate; otherwise a --mix or a --workload.
    """
    from aegaeon_scheduler.simulator import experiment
    from aegaeon_scheduler.simulator.catalog import DATA
    from aegaeon_scheduler.simulator.demand import same_traffic
    from aegaeon_scheduler.simulator.mix import read_mix
    from aegaeon_scheduler.simulator.objective import Objective
    from aegaeon_scheduler.simulator.planner import plan_all

    found = experiment.find_device(device, link)
    objective = Objective.of_seconds(ttft_s, tpot_s)
    shapes = experiment.find_shapes(profile, found, data or DATA)
    if workload is not None:
        scenarios = experiment.replayed([workload], shapes, objective).scenarios
    elif mix is not None:
        scenarios = experiment.repeated(read_mix(mix, found, data or DATA), seconds, seeds)
    else:
        drawn = experiment.find_lengths(lengths, input_tokens, output_tokens)
        demand = same_traffic(models, rate, shapes, drawn, objective)
        scenarios = experiment.repeated(demand, seconds, seeds)
    shares = experiment.parse_numbers("--targets", targets)
    _report(plan_all(policies, found, scenarios, shares, engines_per_node, most), out, as_json)


def _report(plans: Sequence[Plan], out: Path | None, as_json: bool) -> None:
    from aegaeon_scheduler.simulator.report import plan_chart, write_plan
    from aegaeon_scheduler.simulator.tables import open_folder

    if as_json:
        print(json.dumps({"plans": [asdict(plan) for plan in plans]}, indent=2))
    else:
        for plan in plans:
            _show(plan)
    if out is not None:
        open_folder(out)
        write_plan(out / "plan.csv", plans)
        (out / "plan.svg").write_text(plan_chart(plans).svg(), encoding="utf-8")


def _show(plan: Plan) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Policy {plan.policy}", title_justify="left", box=SIMPLE_HEAD)
    for name in ("engines", "nodes", "tokens on time", "of each draw", "busy", "switching"):
        table.add_column(name, justify="right")
    for sample in plan.samples:
        table.add_row(
            str(sample.engines),
            str(sample.nodes),
            f"{sample.mean:.1%}",
            f"{sample.lowest:.1%} - {sample.highest:.1%}",
            f"{sample.busy:.1%}",
            f"{sample.switching:.1%}",
        )
    Console().print(table)
    most = plan.samples[-1].engines
    for need in plan.needs:
        counts = [
            f"more than {most}" if count is None else str(count)
            for count in (need.on_average, need.in_every_scenario)
        ]
        print(f"  {need.target:.0%} of deadlines: {counts[0]} engines; in every draw: {counts[1]}")
    if plan.knee is not None:
        print(f"  Knee: {plan.knee} engines; a tenth more gain less than one point.")
    print()
