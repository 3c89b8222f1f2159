"""Routing by what engines keep, against routing by their requests alone, in virtual time.

One model has a replica on each of some nodes of one simulated H800. Conversations go on there: a
prompt is one of some instructions, everything said before, and a new message. All policies get the
same arrivals. Requests whose prompts have nothing in common must get every token at the same time
from `prefix-aware` and `least-outstanding`, or there is no report.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.values import RoutingPolicy
from aegaeon_scheduler.simulator.catalog import H800
from aegaeon_scheduler.simulator.conversations import Conversations
from aegaeon_scheduler.simulator.core_controller import CoreController
from aegaeon_scheduler.simulator.experiment import find_shapes
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.objective import Objectives
from aegaeon_scheduler.simulator.results import RequestRecord
from aegaeon_scheduler.simulator.simulation import Simulation
from aegaeon_scheduler.simulator.workload import Arrival
from benchmarks.machine import describe_command, describe_machine, describe_versions
from benchmarks.report import Report, Table

MODEL = "Qwen2.5-7B"
_HEADER = [
    "workload",
    "routing",
    "prompt tokens found",
    "expected",
    "TTFT mean ms",
    "p50",
    "p99",
    "time per token p99 ms",
    "most requests of a replica / mean",
    "time in steps",
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy on one workload."""

    policy: RoutingPolicy
    records: list[RequestRecord]
    found: float
    expected: float
    #: Requests of the node that got most, by those that it would get of equal shares.
    skew: float
    busy: float

    @property
    def ttft_ms(self) -> list[float]:
        """Times to the first token, sorted."""
        return sorted((r.first_token_ns - r.arrival.time_ns) / 1e6 for r in self.records)

    @property
    def pace_ms(self) -> list[float]:
        """Mean times per further token of requests, sorted."""
        spans = [
            (r.last_token_ns - r.first_token_ns) / (r.tokens - 1) / 1e6
            for r in self.records
            if r.tokens > 1
        ]
        return sorted(spans)


def run(
    arrivals: Sequence[Arrival], policy: RoutingPolicy, nodes: int, engines_per_node: int = 1
) -> Outcome:
    """Serve a workload with a replica on every node."""
    (shape,) = find_shapes(MODEL, H800)
    machines = Machines(H800, {MODEL: replace(shape, name=MODEL)}, nodes, engines_per_node)
    cluster = Cluster(CoreConfig(routing=policy))
    objectives = Objectives()
    controller = CoreController(cluster, machines, objectives, replicas=nodes)
    result = Simulation(policy.name, controller, machines.workers(), arrivals, objectives).run()
    counts = cluster.state.statistics
    routed = counts.routed_by_node
    return Outcome(
        policy,
        result.records,
        counts.cached_tokens / counts.prompt_tokens,
        counts.expected_cached_tokens / counts.prompt_tokens,
        max(routed.values()) * nodes / sum(routed.values()),
        result.busy_share,
    )


def workloads(seconds: float) -> dict[str, list[Arrival]]:
    """By name: conversations at several rates, one hot beginning, and nothing in common."""
    found = {
        f"{rate:g} conversations/s": Conversations(MODEL, rate).draw(seconds, 1)
        for rate in (4.0, 16.0, 32.0)
    }
    hot = Conversations(MODEL, 8.0, instructions=1, instruction_tokens=4000, turns=1.0)
    found["one beginning of 4,000 tokens, 8/s"] = hot.draw(seconds, 1)
    alone = Conversations(MODEL, 6.0).draw(seconds, 1)
    found["nothing in common"] = [replace(arrival, tokens=()) for arrival in alone]
    return found


def _check_same(outcomes: Sequence[Outcome]) -> None:
    times = {
        outcome.policy: [(r.first_token_ns, r.last_token_ns) for r in outcome.records]
        for outcome in outcomes
    }
    assert times[RoutingPolicy.PREFIX_AWARE] == times[RoutingPolicy.LEAST_OUTSTANDING]


def _row(name: str, outcome: Outcome) -> list[str]:
    ttft, pace = outcome.ttft_ms, outcome.pace_ms
    return [
        name,
        outcome.policy.name.lower().replace("_", "-"),
        f"{outcome.found:.1%}",
        f"{outcome.expected:.1%}",
        f"{statistics.mean(ttft):.1f}",
        f"{statistics.median(ttft):.1f}",
        f"{ttft[int(len(ttft) * 0.99)]:.1f}",
        f"{pace[int(len(pace) * 0.99)]:.1f}",
        f"{outcome.skew:.2f}",
        f"{outcome.busy:.1%}",
    ]


def main() -> None:
    """Simulate, write the report, print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--nodes", type=int, default=8, help="replicas (default: %(default)s)")
    add("--seconds", type=float, default=60.0, help="of arrivals (default: %(default)s)")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    rows = []
    for name, arrivals in workloads(options.seconds).items():
        outcomes = [run(arrivals, policy, options.nodes) for policy in RoutingPolicy]
        if not any(arrival.tokens for arrival in arrivals):
            _check_same(outcomes)
        for outcome in outcomes:
            rows.append(_row(name, outcome))
            print(" | ".join(rows[-1]), flush=True)
    report = Report(
        title="Routing by what engines keep",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.prefix_routing"),
        machine=describe_machine(),
        versions=describe_versions(),
        settings={"nodes": str(options.nodes), "model": MODEL, "seconds": f"{options.seconds:g}"},
        figures=[],
        targets=[],
        tables=[Table(_HEADER, rows)],
    )
    report.write(options.out, "prefix-routing")
    print(report.markdown())


if __name__ == "__main__":
    main()
