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
from benchmarks.idle_share import find_daemons, idle_share
from benchmarks.in_process import InProcessEngine
from benchmarks.machine import describe_command, describe_machine, describe_versions
from benchmarks.model_switch import SwitchTimes, measure_switches
from benchmarks.promises import StackTimes, targets
from benchmarks.report import Figure, Report
from benchmarks.service import NodeSizes, WholeStack, start_service
from benchmarks.timings import Timings
from benchmarks.transformers_peer import load_peers
from benchmarks.workload import PROMPT_LENGTHS, Workload, load_workload

THREADS = 2
NEW_TOKENS = 64
SIZES = NodeSizes(device_bytes=3 << 29, model_cache_bytes=2 << 30)


def measure(model_path: Path, rounds: int, idle_s: float) -> StackTimes:
    """All competitors in turn, then the daemons' idle share."""
    workload = load_workload(model_path, NEW_TOKENS)
    peers = [Timings(peer) for peer in load_peers(model_path)]
    model = ModelSpec("benchmark", str(model_path))
    engine = InProcessEngine(model_path, SIZES, THREADS)
    try:
        with start_service([model], SIZES) as service:
            stack = StackTimes(peers, Timings(WholeStack(service, model)), Timings(engine))
            expected = _warm_up(stack, workload)
            for number in range(rounds):
                for timings in stack.all:
                    timings.run_round(workload, expected)
                    rates = f"{timings.batch[-1]:.1f} and {timings.single[-1]:.1f} tokens/s"
                    print(f"round {number + 1}, {timings.competitor.name}: {rates}", flush=True)
            stack.idle = idle_share(find_daemons(), idle_s)
            return stack
    finally:
        engine.close()


def _warm_up(stack: StackTimes, workload: Workload) -> list[list[int]]:
    """Run everything once; the first peer's tokens are what all must produce."""
    for timings in stack.all[1:]:
        timings.competitor.generate(workload.prompts, 2)
    return stack.all[0].competitor.generate(workload.prompts, workload.new_tokens).tokens


def main() -> None:
    """Measure, write the report, print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="of every competitor (default: %(default)s)")
    add("--switches", type=int, default=20, help="between two models (default: %(default)s)")
    add("--idle-seconds", type=float, default=20.0, help="without requests (default: %(default)s)")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    model_path = fetch_demo_model()
    stack = measure(model_path, options.rounds, options.idle_seconds)
    switches = measure_switches(model_path, options.switches)
    report = _report(stack, switches, options.rounds)
    report.write(options.out, "cpu-stack")
    print(report.markdown())


def _report(stack: StackTimes, switches: SwitchTimes, rounds: int) -> Report:
    return Report(
        title="The whole stack on CPUs",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.cpu_stack"),
        machine=describe_machine(),
        versions=describe_versions(),
        settings={
            "model": "SmolLM2-135M-Instruct in float32",
            "threads": str(THREADS),
            "prompts": str(len(PROMPT_LENGTHS)),
            "new tokens": str(NEW_TOKENS),
            "rounds": str(rounds),
        },
        figures=[
            *(figure for timings in stack.all for figure in timings.figures()),
            Figure(f"model switch, {switches.weight_bytes} bytes", "ms", switches.switch_ms),
            Figure("copy of as many bytes", "ms", switches.copy_ms),
            Figure("idle scheduler and worker", "% of one core", [stack.idle * 100]),
        ],
        targets=targets(stack, switches),
    )


if __name__ == "__main__":
    main()
