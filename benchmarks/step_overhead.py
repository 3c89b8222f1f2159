"""What a worker adds to the steps of its device: a steady one stands in for a GPU.

The device takes a given time for every step and no processor, so that whatever it idles between two
steps is the host's doing: engine, daemons, client and the cores that they share.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import describe_command, describe_machine, describe_versions
from benchmarks.report import Report, Table, Target
from benchmarks.steady_device import StepTimes
from benchmarks.step_cases import Case, Measured, run_cases
from benchmarks.step_stack import BareSide, StackSide, checkpoint

#: What a token of a prompt takes with eight billion parameters on an H200.
_PROMPT_TOKEN_NS = 22_000
#: Goal: share of a decode turn that the device may idle, with so many streams and such steps.
_GOAL_IDLE, _GOAL_STREAMS, _GOAL_STEP_MS = 0.02, 32, 5.0


def measure(step_ms: list[float], seconds: float) -> Iterator[Measured]:
    """All cases, one model alone and behind the daemons, then several."""
    with checkpoint() as path:
        for length in step_ms:
            times = StepTimes(round(length * 1e6), _PROMPT_TOKEN_NS)
            alone = [Case(length, 1, streams) for streams in (1, 8, 32, 128)]
            yield from run_cases(BareSide(path, times), alone, seconds)
            busy = [
                Case(length, 1, _GOAL_STREAMS, arrivals=3.0),
                Case(length, 1, _GOAL_STREAMS, deploys=True),
            ]
            yield from run_cases(StackSide(path, times, ["m0"]), [*alone, *busy], seconds)
            several = [Case(length, models, 4) for models in (2, 8)]
            names = [f"m{n}" for n in range(8)]
            yield from run_cases(StackSide(path, times, names), several, seconds)


_HEADER = [
    "side",
    "step ms",
    "models",
    "streams each",
    "beside",
    "device idle",
    "gap, median ms",
    "between turns, ms",
    "steps per turn",
    "99 % ms",
    "longest ms",
    "engine thread, µs per step",
    "its waits for a core, µs",
    "others of the worker, µs",
    "scheduler, µs",
    "client, µs",
]


def _row(measured: Measured) -> list[str]:
    gaps, case = measured.gaps_ms, measured.case
    engine = "worker" if "worker" in measured.spent else "engine"
    return [
        measured.side,
        f"{case.step_ms:g}",
        str(case.models),
        str(case.streams),
        "deploys" if case.deploys else f"{case.arrivals:g} arrivals/s" if case.arrivals else "",
        f"{measured.idle:.1%}",
        f"{statistics.median(gaps):.3f}",
        f"{measured.change_ms:.3f}" if case.models > 1 else "",
        f"{measured.steps_per_turn:.1f}" if case.models > 1 else "",
        f"{gaps[int(len(gaps) * 0.99)]:.2f}",
        f"{gaps[-1]:.2f}",
        f"{measured.step_us(engine, engine=True):.0f}",
        f"{measured.waited_us(engine, engine=True):.0f}",
        f"{measured.step_us(engine, engine=False):.0f}",
        f"{measured.step_us('scheduler'):.0f}",
        f"{measured.step_us('client'):.0f}",
    ]


def _targets(found: list[Measured]) -> list[Target]:
    return [
        Target(
            f"{m.side}, {m.case.streams} streams, {m.case.step_ms:g} ms: device idle",
            100 * m.idle,
            "%",
            100 * _GOAL_IDLE,
            at_least=False,
        )
        for m in found
        if m.case == Case(_GOAL_STEP_MS, 1, _GOAL_STREAMS)
    ]


def main() -> None:
    """Measure, write the report, print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--step-ms", type=float, nargs="+", default=[5.0, 2.0], help="of the device")
    add("--seconds", type=float, default=4.0, help="per case (default: %(default)s)")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    machine = describe_machine()
    found = []
    for measured in measure(options.step_ms, options.seconds):
        found.append(measured)
        print(" | ".join(_row(measured)), flush=True)
    report = Report(
        title="Steps of a steady device",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.step_overhead"),
        machine=machine,
        versions=describe_versions(),
        settings={"prompts": f"{_PROMPT_TOKEN_NS / 1e3:g} µs per token on top of a step"},
        figures=[],
        targets=_targets(found),
        tables=[Table(_HEADER, [_row(measured) for measured in found])],
    )
    report.write(options.out, "step-overhead")
    print(report.markdown())


if __name__ == "__main__":
    main()
