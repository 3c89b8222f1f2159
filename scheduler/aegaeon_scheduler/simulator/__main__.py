"""``python -m aegaeon_scheduler.simulator``: policies against workloads, in virtual time."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import replace
from pathlib import Path

from aegaeon_scheduler.simulator.catalog import DATA, H800, read_shapes
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.picture import draw_attainment
from aegaeon_scheduler.simulator.policies import POLICIES
from aegaeon_scheduler.simulator.results import Objective, write_requests
from aegaeon_scheduler.simulator.sweep import Point, Sweep, capacity, lines_of, write_summary
from aegaeon_scheduler.simulator.workload import Arrival, draw_workload, read_workload

#: Lengths of drawn requests come from this workload.
_LENGTHS = DATA / "synth-80-0.1-1.0-1.0.csv"
_HEAD = (
    f"{'policy':14} {'tokens':>8} {'requests':>9} {'busy':>6} {'switch':>7} {'idle':>6} {'s':>6}"
)


def main(arguments: Items[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aegaeon-simulate", description=__doc__)
    add = parser.add_argument
    add("--policies", default=",".join(POLICIES), help="comma-separated; default: all of them")
    add("--workload", type=Path, nargs="+", default=[], help="CSV files; default: drawn arrivals")
    add("--models", default="80", help="numbers of models, comma-separated")
    add("--rates", default="0.1", help="requests/s per model, comma-separated")
    add("--seconds", type=float, default=120.0, help="length of a drawn workload")
    add("--seed", type=int, default=1, help="of a drawn workload")
    add("--nodes", type=int, default=2)
    add("--engines-per-node", type=int, default=8)
    add("--link-gbytes", type=float, default=32.0, help="host to device, GB/s")
    add("--no-prefetch", action="store_true", help="never copy weights while a turn runs")
    add("--ttft-s", type=float, default=10.0, help="deadline of the first token")
    add("--tpot-s", type=float, default=0.1, help="between deadlines of tokens")
    add("--out", type=Path, help="folder for summary.csv, requests-*.csv and attainment.svg")
    return parser


def _run(options: argparse.Namespace) -> None:
    policies = _policies(options.policies)
    for name in ("link_gbytes", "ttft_s", "tpot_s"):
        if not 0 < getattr(options, name) < 1e6:
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag} is {getattr(options, name)}; it must be positive")
    device = replace(
        H800, link_bytes_per_s=options.link_gbytes * 1e9, prefetch=not options.no_prefetch
    )
    objective = Objective(round(options.ttft_s * 1e9), round(options.tpot_s * 1e9))
    sweep = Sweep(device, read_shapes(device), objective, options.nodes, options.engines_per_node)
    points: list[Point] = []
    x_name = "rate" if "," in options.rates and not options.workload else "models"
    for title, x, arrivals in _workloads(options, x_name):
        print(f"\n{title}: {len(arrivals)} requests\n{_HEAD}")
        start = time.process_time()
        for point in sweep.simulate(x, arrivals, policies):
            print(_describe(point, time.process_time() - start), flush=True)
            start = time.process_time()
            points.append(point)
            if options.out is not None and point.result is not None:
                options.out.mkdir(parents=True, exist_ok=True)
                name = f"requests-{point.policy}-{title.replace(' ', '-').replace('/', '-')}.csv"
                write_requests(options.out / name, point.result)
    _conclude(points, x_name, options.out)


def _policies(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in POLICIES:
            raise InputError(f"unknown policy {name!r}; there are: {', '.join(POLICIES)}")
    return names


def _workloads(
    options: argparse.Namespace, x_name: str
) -> Iterator[tuple[str, float, list[Arrival]]]:
    for path in options.workload:
        arrivals = read_workload(path)
        yield path.stem, len({arrival.model for arrival in arrivals}), arrivals
    if options.workload:
        return
    lengths = read_workload(_LENGTHS)
    for models in _numbers("--models", options.models):
        for rate in _numbers("--rates", options.rates):
            if models != int(models):
                raise InputError(f"--models is {models:g}; it must be a whole number")
            arrivals = draw_workload(int(models), rate, options.seconds, lengths, options.seed)
            title = f"{models:g} models at {rate:g} requests per s"
            yield title, rate if x_name == "rate" else models, arrivals


def _numbers(flag: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} is {text!r}; it must be numbers with commas between") from None


def _describe(point: Point, seconds: float) -> str:
    result = point.result
    if result is None:
        return f"{point.policy:14} {point.attainment:8.2%}"
    return (
        f"{point.policy:14} {point.attainment:8.2%} {result.request_attainment:9.2%} "
        f"{result.busy_share:6.1%} {result.switching_share:7.1%} {result.idle_share:6.1%} "
        f"{seconds:6.1f}"
    )


def _conclude(points: list[Point], x_name: str, out: Path | None) -> None:
    lines = lines_of(points)
    sizes = [point.x for point in points if point.policy == points[0].policy]
    if 1 < len(sizes) == len(set(sizes)):  # workloads of one size do not make a line
        print(f"\ncapacity at 90 % of token deadlines, {x_name}:")
        for policy, line in lines.items():
            found = capacity(line)
            print(f"{policy:14} " + (f"{found:.3g}" if found is not None else f"> {line[-1][0]:g}"))
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    write_summary(out / "summary.csv", points, x_name)
    label = "requests/s per model" if x_name == "rate" else "models"
    (out / "attainment.svg").write_text(draw_attainment(lines, label), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
