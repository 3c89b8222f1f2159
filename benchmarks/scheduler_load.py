"""The scheduler daemon under load: 64 stub engines with 64 sequences each, and clients.

Scheduler, stub workers and clients are three processes on this machine. A token's added latency is
the time from the stub worker's send to the client's receipt, by the machine's one monotonic clock:
both hops, and all waiting of the three processes for a core.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load_bench import CARRIED, LATENCY_MS, Level, Load, started
from benchmarks.load_engine import BATCH, ENGINES
from benchmarks.machine import describe_command, describe_machine, describe_versions
from benchmarks.report import Report, Table, Target

#: Of every engine, as the target has it: 122,880 tokens per second.
STEPS_PER_S = 30.0
_RAMP = [STEPS_PER_S, 60.0, 90.0, 100.0, 110.0]
_SESSIONS = [
    Load("8 sessions"),
    Load("64 sessions", channels=64),
    Load("8 sessions, 256 tokens per request", new_tokens=256),
]
_OTHERS = [
    Load("Python client, 1 session", way="python", channels=1),
    Load("64 Generate calls on one engine", way="generate", channels=1, engines=1, requests=64),
    Load("4,096 Generate calls", way="generate"),
]
_HEADER = [
    "load",
    "steps/s",
    "tokens/s",
    "of offered",
    "p50 ms",
    "p99 ms",
    "max ms",
    "scheduler, cores",
    "µs per token",
    "workers, cores",
    "clients, cores",
    "messages/s",
    "ends/s",
    "late steps/s",
    "scheduler, MiB",
]


def measure(seconds: float, ramp: Sequence[float]) -> list[Level]:
    """The first load up to its limit, the others at the target."""
    levels: list[Level] = []
    with started(seconds) as bench:
        for load in (*_SESSIONS, *_OTHERS):
            rates = ramp if load is _SESSIONS[0] else [STEPS_PER_S]
            for level in bench.measure(load, rates):
                levels.append(level)
                print(" | ".join(_row(level)), flush=True)
    return levels


def main() -> None:
    """Measure, write the report, print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=4.0, help="per level (default: %(default)s)")
    add("--ramp", type=float, nargs="+", default=_RAMP, help="steps per second, in turn")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    machine = describe_machine()
    report = _report(measure(options.seconds, options.ramp), machine)
    report.write(options.out, "scheduler-load")
    print(report.markdown())


def _report(levels: list[Level], machine: dict[str, str]) -> Report:
    return Report(
        title="The scheduler daemon under load",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.scheduler_load"),
        machine=machine,
        versions=describe_versions(),
        settings={"engines": str(ENGINES), "sequences per engine": str(BATCH)},
        figures=[],
        targets=_targets(levels),
        tables=[Table(_HEADER, [_row(level) for level in levels])],
    )


def _targets(levels: list[Level]) -> list[Target]:
    """Of every load at the target's pace."""
    found = []
    for level in levels:
        if level.load in _SESSIONS and level.steps_per_s == STEPS_PER_S:
            name, share = level.load.name, level.tokens / level.offered
            found += [
                Target(f"{name}: offered tokens that arrive", share, "x", CARRIED, at_least=True),
                Target(f"{name}: p99", level.p99_ms, "ms", LATENCY_MS, at_least=False),
                Target(f"{name}: scheduler", level.scheduler, "cores", 1.0, at_least=False),
            ]
    return found


def _row(level: Level) -> list[str]:
    # The Python client's steps are counted, and their ages known to a tenth of a second only.
    stepwise = level.load.way == "python"
    return [
        level.load.name,
        f"{level.steps_per_s:g}",
        f"{level.tokens:,.0f}",
        f"{level.tokens / level.offered:.0%}",
        "" if stepwise else f"{level.p50_ms:.1f}",
        "" if stepwise else f"{level.p99_ms:.1f}",
        "" if stepwise else f"{level.max_ms:.1f}",
        f"{level.scheduler:.2f}",
        f"{level.scheduler_us:.1f}",
        f"{level.workers:.2f}",
        f"{level.clients:.2f}",
        "" if stepwise else f"{level.messages:,.0f}",
        f"{level.ends:.0f}",
        f"{level.late:.0f}",
        f"{level.memory_mib:.0f}",
    ]


if __name__ == "__main__":
    main()
