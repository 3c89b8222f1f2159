"""Throughput of the whole stack on CPUs through the HTTP gateway, with gRPC beside it.

The same prompts to the same daemons, all at once and streamed: as HTTP callers of the gateway, and
as streams of `LLMService`, each kind in a process of its own. They take turns, in changing order,
as a noisy machine shall disturb both alike; figures are medians. Both must get the same text in
every round, or there is no result.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from aegaeon.demo_model import fetch_demo_model
from aegaeon.model_spec import ModelSpec
from benchmarks.load_processes import LineProcess, gateway_daemon
from benchmarks.machine import describe_command, describe_machine, describe_versions
from benchmarks.report import Figure, Report, Target
from benchmarks.service import NodeSizes, start_service

_MODEL = "benchmark"
#: Of the same through gRPC.
_TARGET = 0.95
#: Weights, and KV of 64 sequences; none of it ever leaves the device.
SIZES = NodeSizes(device_bytes=3 << 29, model_cache_bytes=1 << 30, cpu_num_slabs=1)


@dataclass
class Side:
    """One way to the model, with an entry per round."""

    name: str
    callers: LineProcess
    #: What runs beside scheduler and worker, of which the callers tell themselves.
    extra: list[psutil.Process] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    #: Processor time per token in microseconds, of the callers and of ``extra``.
    caller_us: list[float] = field(default_factory=list)
    extra_us: list[float] = field(default_factory=list)

    def run_round(self, tokens: int, expected: list[str] | None) -> list[str]:
        """The texts, which must be those that are expected."""
        before = sum(map(_cpu_s, self.extra))
        answer = self.callers.ask()
        spent = sum(map(_cpu_s, self.extra)) - before
        texts: list[str] = answer["texts"]
        for number, text in enumerate(texts):
            if expected is not None and text != expected[number]:
                raise AssertionError(f"{self.name}: {number} is {text!r}, not {expected[number]!r}")
        self.rates.append(tokens / answer["seconds"])
        self.caller_us.append(answer["cpu_s"] / tokens * 1e6)
        self.extra_us.append(spent / tokens * 1e6)
        return texts


def measure(options: argparse.Namespace) -> tuple[Side, Side]:
    """Through the gateway and through gRPC; the first round of each is not counted."""
    path = str(fetch_demo_model())
    flags = ["--model", _MODEL, "--model-path", path]
    for name in ("streams", "prompt_tokens", "new_tokens"):
        flags += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    tokens = options.streams * options.new_tokens
    with ExitStack() as stack:
        service = stack.enter_context(start_service([ModelSpec(_MODEL, path)], SIZES))
        gateway = stack.enter_context(gateway_daemon(service.address))
        sides = []
        for kind, address in (("http", gateway.address), ("grpc", service.address)):
            callers = LineProcess("benchmarks.stack_clients", kind, "--address", address, *flags)
            stack.callback(callers.close)
            sides.append(Side(kind, callers))
        http, grpc = sides
        http.extra.append(gateway.process)
        expected = None
        for number in range(options.rounds + 1):
            for side in sides if number % 2 == 0 else sides[::-1]:
                expected = side.run_round(tokens, expected)
                print(f"round {number}, {side.name}: {side.rates[-1]:.1f} tokens/s", flush=True)
    for side in sides:
        for samples in (side.rates, side.caller_us, side.extra_us):
            del samples[0]
    return http, grpc


def main() -> None:
    """Measure, write the report, print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--streams", type=int, default=64, help="at once (default: %(default)s)")
    add("--prompt-tokens", type=int, default=16, help="of each stream (default: %(default)s)")
    add("--new-tokens", type=int, default=48, help="of each stream (default: %(default)s)")
    add("--rounds", type=int, default=5, help="of both, after one (default: %(default)s)")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    machine = describe_machine()
    http, grpc = measure(options)
    ratio = statistics.median(http.rates) / statistics.median(grpc.rates)
    report = Report(
        title="The whole stack through the HTTP gateway",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.gateway_stack"),
        machine=machine,
        versions=describe_versions(),
        settings={
            "model": "SmolLM2-135M-Instruct in float32",
            "streams": str(options.streams),
            "prompt tokens": str(options.prompt_tokens),
            "new tokens": str(options.new_tokens),
            "rounds": str(options.rounds),
        },
        figures=[
            Figure("through the gateway", "tokens/s", http.rates),
            Figure("through gRPC", "tokens/s", grpc.rates),
            Figure("gateway, processor time per token", "µs", http.extra_us),
            Figure("HTTP callers, processor time per token", "µs", http.caller_us),
            Figure("gRPC callers, processor time per token", "µs", grpc.caller_us),
        ],
        targets=[Target("through the gateway, of gRPC", ratio, "x", _TARGET, at_least=True)],
    )
    report.write(options.out, "gateway-stack")
    print(report.markdown())


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
