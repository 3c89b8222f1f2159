"""Measure the native decoder on one GPU: kernels and accuracy first, then decode and prefill."""

from __future__ import annotations

import argparse
import datetime
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from aegaeon_worker.engine.decode_steps import DecodeSteps
from benchmarks.gpu_accuracy import Accuracy, measure_accuracy
from benchmarks.gpu_limits import copy_gbps, product_tflops
from benchmarks.gpu_models import RandomModel, qwen3_config, random_tokens
from benchmarks.gpu_steps import DecodeRun, decode_steps
from benchmarks.machine import describe_command
from benchmarks.report import Figure, Report, Target

CONTEXT, STEPS = 1024, 128
ROUNDS = 3
#: Tokens per pass of a long prefill: larger passes gain nothing.
PREFILL_TOKENS = 8192
#: (model, batch) → milliseconds per step that must be kept.
DECODE_TARGETS = {
    ("8B", 1): 4.5, ("8B", 8): 4.8, ("8B", 32): 5.7, ("8B", 128): 10.0, ("8B", 256): 16.5,
    ("0.6B", 1): 1.0, ("0.6B", 32): 1.9, ("0.6B", 128): 5.0,
}  # fmt: skip


def decode_ms(model: RandomModel, steps: DecodeSteps, batch: int) -> float:
    """Milliseconds per step over ``STEPS`` steps from a context of ``CONTEXT``, wall clock.

    Every step's tokens are read on the host while the next step runs.
    """
    tables = model.tables(batch, CONTEXT + STEPS + 4)
    run = DecodeRun(steps, random_tokens(batch, 1)[:, 0].tolist(), CONTEXT, tables)
    # The first one runs as it is, the second one is recorded.
    run.run(2)
    start = time.perf_counter()
    run.run(STEPS)
    return (time.perf_counter() - start) / STEPS * 1e3


def prefill_ms(model: RandomModel, sequences: int, length: int) -> float:
    """Milliseconds until the first token of every prompt is on the host, wall clock."""
    tables = model.tables(sequences, length)
    tokens = random_tokens(sequences, length)
    together = max(1, PREFILL_TOKENS // length)
    torch.cuda.synchronize()
    start = time.perf_counter()
    first = [
        model.native.forward(
            model.chunk(tokens[at : at + together], tables[at : at + together])
        ).argmax(-1)
        for at in range(0, sequences, together)
    ]
    torch.cat(first).tolist()
    return (time.perf_counter() - start) * 1e3


def repeat(measure: object, *arguments: object) -> list[float]:
    """Samples of ``measure`` after one call to warm up."""
    assert callable(measure)
    measure(*arguments)
    return [float(measure(*arguments)) for _ in range(ROUNDS)]


def floor_ms(model: RandomModel, batch: int, gbps: float) -> float:
    """What reading the weights and the KV of a step takes at the speed of a copy."""
    embedding = 0 if model.ties else model.config.vocab_size * model.config.hidden_size * 2
    kv = model.native.kv_shape.block_nbytes / 16 * (CONTEXT + STEPS / 2) * batch
    return (model.nbytes - embedding + kv) / gbps / 1e6


def measure_model(size: str, gbps: float) -> tuple[list[Figure], list[Target]]:
    """Decode steps of every batch size; for the large model prefill as well."""
    batches = [batch for name, batch in DECODE_TARGETS if name == size]
    largest = max(batches)
    model = RandomModel(qwen3_config(size), kv_tokens=largest * (CONTEXT + STEPS + 16))
    steps = decode_steps(model, max_batch=largest, max_tokens=2048)
    figures, targets = [], []
    for batch in batches:
        times = repeat(decode_ms, model, steps, batch)
        floor, name = floor_ms(model, batch, gbps), f"{size}: decode step, batch {batch}"
        figures.append(Figure(name, "ms", times))
        figures.append(Figure(f"{name}: memory floor", "ms", [floor]))
        step, limit = statistics.median(times), DECODE_TARGETS[size, batch]
        figures.append(Figure(f"{name}: of the floor's speed", "%", [floor / step * 100]))
        targets.append(Target(name, step, "ms", limit, at_least=False))
    if size == "8B":
        for length, limit in ((1024, 25.0), (7680, 205.0)):
            name = f"{size}: prefill of 1 x {length}"
            times = repeat(prefill_ms, model, 1, length)
            figures.append(Figure(name, "ms", times))
            targets.append(Target(name, statistics.median(times), "ms", limit, at_least=False))
        name = f"{size}: prefill of 64 x 1024"
        rates = [64 * 1024 / ms * 1e3 for ms in repeat(prefill_ms, model, 64, 1024)]
        figures.append(Figure(name, "tokens/s", rates))
        rate = statistics.median(rates)
        targets.append(Target(name, rate, "tokens/s", 44_000.0, at_least=True))
    return figures, targets


def check_kernels() -> str:
    """Run the kernels' tests on this GPU; raise if one fails."""
    tests = ["tests/worker/kernels", "-q", "--import-mode=importlib", "-p", "no:cacheprovider"]
    if find_spec("xdist") is not None:
        tests += ["-n", "10"]
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", ".", *tests]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(result.stdout[-4000:] + result.stderr[-2000:])
    return result.stdout.strip().splitlines()[-1].strip("= ")


def main() -> None:
    """Run all of it and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    tests = check_kernels()
    accuracy = measure_accuracy()
    accuracy.check()
    gbps, tflops = copy_gbps(), product_tflops()
    figures = [
        Figure("device memory, copy", "GB/s", [gbps]),
        Figure("bfloat16 product, 8192 cubed", "TFLOP/s", [tflops]),
    ]
    targets: list[Target] = []
    for size in ("0.6B", "8B"):
        measured, required = measure_model(size, gbps)
        figures += measured
        targets += required
        torch.cuda.empty_cache()
    report = Report(
        title="The native decoder on one GPU",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.gpu_decode"),
        machine={"GPU": torch.cuda.get_device_name()},
        versions={name: version(name) for name in ("torch", "triton", "transformers")},
        settings=_settings(tests, accuracy),
        figures=figures,
        targets=targets,
    )
    report.write(options.out, "gpu-decode")
    print(report.markdown())


def _settings(tests: str, accuracy: Accuracy) -> dict[str, str]:
    return {
        "models": "shapes of Qwen3, random weights, bfloat16",
        "kernel tests": tests,
        **{f"accuracy: {name}": f"{value:.5f}" for name, value in asdict(accuracy).items()},
    }


if __name__ == "__main__":
    main()
