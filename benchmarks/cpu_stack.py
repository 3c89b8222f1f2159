"""The whole stack on CPUs, with transformers and the bare engine beside it in the same run.

Competitors take turns, so that a noisy machine disturbs all of them alike; figures are medians. All
of them must produce the same tokens, or there is no result.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

import torch

from aegaeon.demo_model import fetch_demo_model
from aegaeon.model_spec import ModelSpec
from benchmarks.bare_engine import BareEngine
from benchmarks.boundary import measure_boundary
from benchmarks.idle_share import find_daemons, idle_share
from benchmarks.machine import describe_command, describe_machine, describe_versions
from benchmarks.model_switch import measure_switches
from benchmarks.promises import StackTimes, targets
from benchmarks.report import Figure, Report
from benchmarks.service import NodeSizes, WholeStack, start_service
from benchmarks.timings import Timings
from benchmarks.transformers_peer import load_peers
from benchmarks.workload import PROMPT_LENGTHS, load_workload

THREADS = 2
NEW_TOKENS = 64
SIZES = NodeSizes(device_bytes=3 << 29, model_cache_bytes=2 << 30)


def measure(model_path: Path, options: argparse.Namespace) -> StackTimes:
    """Peers and stack in turn, the stack beside its bare engine, rest, model switches."""
    workload = load_workload(model_path, NEW_TOKENS)
    peers = [Timings(peer) for peer in load_peers(model_path)]
    expected = peers[0].competitor.generate(workload.prompts, NEW_TOKENS).tokens
    model = ModelSpec("benchmark", str(model_path))
    with start_service([model], SIZES) as service:
        stack = Timings(WholeStack(service, model))
        stack.competitor.generate(workload.prompts, 2)
        for number in range(options.rounds):
            for timings in (*peers, stack):
                timings.run_round(workload, expected)
                rates = f"{timings.batch[-1]:.1f} and {timings.single[-1]:.1f} tokens/s"
                print(f"round {number + 1}, {timings.competitor.name}: {rates}", flush=True)
        engine = BareEngine(model_path, SIZES, THREADS)
        try:
            engine.generate(workload.prompts, 2)
            boundary = measure_boundary(stack.competitor, engine, workload, expected, options.pairs)
        finally:
            engine.close()
        idle = idle_share(find_daemons(), options.idle_seconds)
    return StackTimes(peers, stack, boundary, measure_switches(model_path, options.switches), idle)


def main() -> None:
    """Measure, write the report, print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="of peers and stack (default: %(default)s)")
    add("--pairs", type=int, default=8, help="of stack and bare engine (default: %(default)s)")
    add("--switches", type=int, default=20, help="between two models (default: %(default)s)")
    add("--idle-seconds", type=float, default=20.0, help="without requests (default: %(default)s)")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    machine = describe_machine()
    report = _report(measure(fetch_demo_model(), options), machine, options)
    report.write(options.out, "cpu-stack")
    print(report.markdown())


def _report(times: StackTimes, machine: dict[str, str], options: argparse.Namespace) -> Report:
    return Report(
        title="The whole stack on CPUs",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.cpu_stack"),
        machine=machine,
        versions=describe_versions(),
        settings={
            "model": "SmolLM2-135M-Instruct in float32",
            "threads": str(THREADS),
            "prompts": str(len(PROMPT_LENGTHS)),
            "new tokens": str(NEW_TOKENS),
            "rounds": str(options.rounds),
        },
        figures=_figures(times),
        targets=targets(times),
    )


def _figures(times: StackTimes) -> list[Figure]:
    boundary, switches = times.boundary, times.switches
    batch_percent = [share * 100 for share in boundary.batch_share]
    return [
        *(figure for timings in (*times.peers, times.stack) for figure in timings.figures()),
        Figure("whole stack: a token of one stream", "ms", boundary.stack_single),
        Figure("engine alone: a token of one stream", "ms", boundary.engine_single),
        Figure("difference of the two, pair by pair", "ms", boundary.single_ms),
        Figure("all at once: throughput lost to the boundary, pair by pair", "%", batch_percent),
        Figure(f"model switch, {switches.weight_bytes} bytes of weights", "ms", switches.switch_ms),
        Figure("copy of as many bytes", "ms", switches.copy_ms),
        Figure("difference of the two, switch by switch", "ms", switches.beyond_copy_ms),
        Figure("idle scheduler and worker, of one core", "%", [times.idle * 100]),
    ]


if __name__ == "__main__":
    main()
