"""Scheduling policies side by side on real models and real daemons on CPUs, same arrivals."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import tempfile
from dataclasses import dataclass
from pathlib import Path

from aegaeon.model_spec import ModelSpec
from aegaeon.replay import ReplayStatistics
from benchmarks.live_daemons import Topology, live_service
from benchmarks.live_models import NUM_MODELS, WEIGHT_BYTES, make_models, write_workload
from benchmarks.machine import describe_command, describe_machine, describe_versions
from benchmarks.report import Figure, Report, Table, Target
from benchmarks.service import NodeSizes

SIMPLE_1 = Topology("1 simple", ("simple",))
SIMPLE_2 = Topology("2 simple", ("simple", "simple"))
SPLIT = Topology("1 prefill + 1 decode", ("prefill", "decode"))
OURS, PUBLISHED, REQUEST_LEVEL = "deadline", "published", "request-level"
#: Every topology with the policies that it is compared under.
CASES = (
    (SIMPLE_1, (OURS, PUBLISHED, REQUEST_LEVEL)),
    (SIMPLE_2, (OURS, PUBLISHED, REQUEST_LEVEL)),
    (SPLIT, (OURS, PUBLISHED)),
)
#: The device of each worker holds two of the six models, and KV.
SIZES = NodeSizes(device_bytes=2 * WEIGHT_BYTES + (96 << 20), model_cache_bytes=8 * WEIGHT_BYTES)


@dataclass(frozen=True)
class Outcome:
    """One replay."""

    topology: Topology
    policy: str
    statistics: ReplayStatistics
    switches: int


def main() -> None:
    """Replay the same workload under each policy; write the report, print it."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        specs = make_models(Path(folder), options.ttft_s, options.tpot_s)
        outcomes = [
            _replay(Path(folder), specs, topology, policy, options)
            for topology, policies in CASES
            for policy in policies
        ]
    report = _report(outcomes, options)
    report.write(options.out, "live-policies")
    print(report.markdown())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=40.0, help="of arrivals (default: %(default)s)")
    add(
        "--rate",
        type=float,
        default=0.15,
        help="requests per second, model and worker (default: %(default)s)",
    )
    add("--ttft-s", type=float, default=2.0, help="objective (default: %(default)s)")
    add("--tpot-s", type=float, default=0.1, help="objective (default: %(default)s)")
    add("--seed", type=int, default=1, help="of the arrivals (default: %(default)s)")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    return parser.parse_args()


def _replay(
    folder: Path,
    specs: list[ModelSpec],
    topology: Topology,
    policy: str,
    options: argparse.Namespace,
) -> Outcome:
    workload = folder / "workload.csv"
    # One worker of a split does not do the work of two.
    workers = len(topology.roles) if topology is not SPLIT else 1
    write_workload(workload, options.rate * workers, options.seconds, options.seed)
    with live_service(policy, topology, SIZES) as service:
        for spec in specs:
            asyncio.run(service.deploy_model_replicas(spec))
        service.reset()
        statistics = service.replay(
            folder / "replay", workload, models={spec.name: spec for spec in specs}
        )
        switches = sum(engine.switches for engine in service.runtime().engines)
    print(f"{topology.name}, {policy}: {statistics.attainment:.1%} of token deadlines", flush=True)
    return Outcome(topology, policy, statistics, switches)


def _report(outcomes: list[Outcome], options: argparse.Namespace) -> Report:
    return Report(
        title="Scheduling policies on live models",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.live_policies"),
        machine=describe_machine(),
        versions=describe_versions(),
        settings={
            "models": f"{NUM_MODELS} with random weights, of which a device holds 2",
            "requests": ", ".join(
                f"{name} with {count}"
                for name, count in {
                    o.topology.name: o.statistics.requests for o in outcomes
                }.items()
            ),
            "objectives": f"TTFT {options.ttft_s:g} s, TPOT {options.tpot_s:g} s",
        },
        figures=[
            Figure(f"{o.topology.name}, {o.policy}: token deadlines met", "%", [_percent(o)])
            for o in outcomes
        ],
        targets=_targets(outcomes),
        tables=[_table(outcomes)],
    )


def _percent(outcome: Outcome) -> float:
    return outcome.statistics.attainment * 100


def _targets(outcomes: list[Outcome]) -> list[Target]:
    """Ours against the best other policy of each topology, at most 2 points behind."""
    targets = []
    for topology, _ in CASES:
        here = {o.policy: _percent(o) for o in outcomes if o.topology is topology}
        others = max(value for policy, value in here.items() if policy != OURS)
        name = f"{topology.name}: ours against the best other"
        targets.append(Target(name, here[OURS] - others, "points", -2.0, at_least=True))
    return targets


def _table(outcomes: list[Outcome]) -> Table:
    header = [
        *("engines", "policy", "token deadlines met", "requests with every gap met"),
        *("TTFT mean", "TTFT p99", "tokens/s", "switches", "failed"),
    ]
    rows = [
        [
            o.topology.name,
            o.policy,
            f"{o.statistics.attainment:.1%}",
            f"{o.statistics.every_gap_attainment:.1%}",
            f"{o.statistics.ttft_mean_s:.2f} s",
            f"{o.statistics.ttft_p99_s:.2f} s",
            f"{o.statistics.tokens_per_s:.0f}",
            str(o.switches),
            str(o.statistics.failed),
        ]
        for o in outcomes
    ]
    return Table(header, rows)


if __name__ == "__main__":
    main()
