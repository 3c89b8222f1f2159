"""Measure the whole engine on one GPU: correctness first, then switches, decode and prefill.

Needs one NVIDIA GPU with 120 GB free, 60 GB of free shared memory and no network.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks import gpu_engine_cases as cases
from benchmarks.gpu_checkpoint import write_checkpoint
from benchmarks.gpu_driver import GIB, EngineDriver
from benchmarks.gpu_limits import copy_gbps, link_gbps, product_tflops
from benchmarks.gpu_models import qwen3_config
from benchmarks.gpu_transformers import transformers_figures
from benchmarks.machine import describe_command, describe_machine
from benchmarks.report import Figure, Report, Target

_TESTS = (
    "tests/worker/kernels",
    "tests/worker/sampling",
    "tests/worker/engine/test_on_gpu.py",
    "tests/worker/engine/test_one_ahead.py",
    "tests/worker/engine/test_turns.py",
    "tests/worker/engine/test_sampled.py",
    "tests/worker/engine/test_recorded_sampling.py",
    "tests/worker/engine/test_prefetch.py",
    "tests/worker/engine/test_constrained.py",
)
#: Bytes of weights and of KV per token, by which a step is bounded; see ``floor_ms``.
_WEIGHTS = {"8B": 15_136_811_008, "0.6B": 1_192_099_840}
_KV_TOKEN = {"8B": 147_456, "0.6B": 114_688}
_DECODE = {
    ("8B", 1): 4.5, ("8B", 8): 4.8, ("8B", 32): 5.7, ("8B", 128): 10.0, ("8B", 256): 16.5,
    ("0.6B", 1): 1.0, ("0.6B", 32): 1.9, ("0.6B", 128): 5.0,
}  # fmt: skip
#: Beyond copying the bytes, a cold switch may take this share of the copy and these milliseconds.
_SWITCH_SHARE, _SWITCH_MS = 0.05, 15.0


def main() -> None:
    """Run all of it and write the report, whatever fails on the way."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--shared-memory-dir", type=Path, default=Path("/dev/shm"))
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    add("--no-tests", action="store_true", help="leave out the tests that come first")
    options = parser.parse_args()
    run = Run()
    tests = "left out" if options.no_tests else run.attempt("tests", check_on_gpu)
    with (
        tempfile.TemporaryDirectory(dir=options.shared_memory_dir, prefix="aegaeon-bench-") as shm,
        tempfile.TemporaryDirectory(prefix="aegaeon-bench-") as checkpoints,
    ):
        _measure(run, Path(shm), Path(checkpoints))
    run.figures += _floors({figure.name: figure.median for figure in run.figures})
    report = Report(
        title="The engine on one GPU",
        date=datetime.now(UTC).date().isoformat(),
        command=describe_command("benchmarks.gpu_engine"),
        machine=describe_machine() | {"GPU": torch.cuda.get_device_name()},
        versions={
            name: version(name) for name in ("torch", "triton", "transformers", "cuda-bindings")
        },
        settings={
            "models": "shapes of Qwen3, random weights, bfloat16",
            "tests on the GPU": tests or "failed",
        },
        figures=run.figures,
        targets=_targets({figure.name: figure.median for figure in run.figures}),
    )
    report.write(options.out, "gpu-engine")
    print(report.markdown())
    if run.failed:
        raise SystemExit(f"failed: {', '.join(run.failed)}")


class Run:
    """Goes on when a case fails, and tells at the end."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self.failed: list[str] = []

    def attempt(self, name: str, case: Callable[[], list[Figure] | str]) -> str:
        """Add the figures of a case; returns what it says instead."""
        began = time.perf_counter()
        try:
            result = case()
        except Exception as error:
            import traceback

            traceback.print_exc()
            print(f"{name} FAILED: {error}", flush=True)
            self.failed.append(name)
            return ""
        print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
        if isinstance(result, str):
            return result
        for figure in result:
            print(f"    {figure.name}: {figure.median:.3f} {figure.unit} {figure.samples}")
        self.figures += result
        return ""


def _measure(run: Run, shm: Path, checkpoints: Path) -> None:
    run.attempt("limits", _limits)
    large, small = checkpoints / "8B", checkpoints / "0.6B"
    for size, batches in _batches().items():
        run.attempt(f"replays {size}", partial(cases.replays, size, batches))
        torch.cuda.empty_cache()
    run.attempt("checkpoints", partial(_checkpoints, checkpoints))
    torch.cuda.empty_cache()
    pool = 96 * GIB
    with EngineDriver(shm, pool, limits=cases.WHOLE_PROMPTS) as driver:
        run.attempt("deploy", partial(_deploy, driver, large, small))
        run.attempt("pinning", partial(_pinning, driver))
        for size, batches in _batches().items():
            run.attempt(f"decode {size}", partial(cases.decode, driver, size, size, batches))
        run.attempt("prefill", partial(cases.prefill, driver, "8B", "8B"))
        for size in ("0.6B", "8B"):
            run.attempt(f"sampled {size}", partial(cases.sampled, driver, size, size, 32))
        run.attempt("resident", partial(cases.resident_switches, driver, ("8B", "8B again"), "8B"))
        run.attempt(
            "prefetch", partial(cases.prefetched_switch, driver, "8B", "8B again", large, "8B")
        )
        run.attempt("graphs", partial(_graph_memory, driver))
    with EngineDriver(shm, pool) as driver:
        run.attempt("deploy again", partial(_deploy_cached, driver, large))
        driver.wait_pinned()
        run.attempt("mixed", partial(cases.mixed, driver, "8B", "8B"))
    run.attempt("cold", partial(cases.cold_switches, shm, large, 16_381_470_720))
    paths = [checkpoints / f"cycle-{n}" for n in range(3)]
    run.attempt("starts", cases.starts)
    run.attempt("stack", partial(cases.whole_stack, large))
    run.attempt("cycles", partial(cases.cycles, shm, paths, 27 * GIB // 10, 200))
    torch.cuda.empty_cache()
    run.attempt("transformers", partial(transformers_figures, large))


def _limits() -> list[Figure]:
    return [
        Figure("device memory, copy", "GB/s", [copy_gbps()]),
        Figure("bfloat16 product, 8192 cubed", "TFLOP/s", [product_tflops()]),
        Figure("link, host to device", "GB/s", [link_gbps()]),
    ]


def _checkpoints(folder: Path) -> list[Figure]:
    write_checkpoint(folder / "8B", qwen3_config("8B"), 0, "cuda")
    write_checkpoint(folder / "0.6B", qwen3_config("0.6B"), 1, "cuda")
    for number, layers in enumerate((28, 24, 20)):
        write_checkpoint(folder / f"cycle-{number}", qwen3_config("0.6B", layers), number, "cuda")
    return []


def _deploy(driver: EngineDriver, large: Path, small: Path) -> list[Figure]:
    first = driver.load(large, "8B")
    return [
        Figure("8B: deploy of a model that is new, file system cached", "s", [first]),
        Figure("0.6B: deploy of a model that is new", "s", [driver.load(small, "0.6B")]),
        Figure("8B: the same under another name", "s", [driver.load(large, "8B again")]),
    ]


def _pinning(driver: EngineDriver) -> list[Figure]:
    """What is measured next is not to be measured beside it."""
    began = time.perf_counter()
    nbytes = driver.wait_pinned()
    return [
        Figure("pinning after deploys, in the background", "s", [time.perf_counter() - began]),
        Figure("pinned", "GB", [nbytes / 1e9]),
    ]


def _graph_memory(driver: EngineDriver) -> list[Figure]:
    recorder = driver.parts.execution.recorder
    assert recorder is not None
    return [Figure("memory of graphs and their scratch", "MiB", [recorder.nbytes / 2**20])]


def _deploy_cached(driver: EngineDriver, large: Path) -> list[Figure]:
    return [Figure("8B: deploy after a restart", "s", [driver.load(large, "8B")])]


def _batches() -> dict[str, list[int]]:
    return {size: [b for s, b in _DECODE if s == size] for size in ("0.6B", "8B")}


def floor_ms(size: str, batch: int, gbps: float) -> float:
    """What reading the weights and the KV of a step takes at the speed of a copy."""
    kv = _KV_TOKEN[size] * (cases.CONTEXT + cases.STEPS / 2) * batch
    return (_WEIGHTS[size] + kv) / gbps / 1e6


def _floors(median: dict[str, float]) -> list[Figure]:
    gbps = median["device memory, copy"]
    return [
        Figure(
            f"{size}: memory floor of a step, batch {batch}", "ms", [floor_ms(size, batch, gbps)]
        )
        for size, batch in _DECODE
    ]


def _targets(median: dict[str, float]) -> list[Target]:
    targets = []

    def add(name: str, unit: str, limit: float, *, at_least: bool = False) -> None:
        if name in median:
            targets.append(Target(name, median[name], unit, limit, at_least=at_least))

    link = median.get("link, host to device", 55.0)
    copy_ms = 16_381_470_720 / link / 1e6
    add(
        "8B: cold switch to the first token of 512",
        "ms",
        copy_ms * (1 + _SWITCH_SHARE) + _SWITCH_MS,
    )
    add("8B: switch to a resident model, until its first step", "ms", 10.0)
    add("8B: switch to a prefetched model, until its first step", "ms", 10.0)
    alone = median.get("8B: decode step, batch 8, alone", 0.0)
    add("8B: decode step, batch 8, beside a prefetch", "ms", 1.05 * alone)
    for (size, batch), limit in _DECODE.items():
        add(f"{size}: decode, batch {batch}", "ms", limit)
        step, replay = (
            f"{size}: decode step, batch {batch}",
            f"{size}: recorded step, batch {batch}",
        )
        if step in median and replay in median:
            idle = 100 * (1 - median[replay] / median[step])
            name = f"{size}: device idle in decode, batch {batch}"
            targets.append(Target(name, idle, "%", 2.0, at_least=False))
    add("8B: prefill of 1 x 1024", "ms", 25.0)
    add("8B: prefill of 1 x 7680", "ms", 205.0)
    add("8B: prefill of 64 x 1024", "tokens/s", 44_000.0, at_least=True)
    add("8B: deploy of a model in the host cache", "s", 1.0)
    add("start of scheduler and worker, warm, until registered", "s", 8.0)
    return targets


def check_on_gpu() -> str:
    """Run the tests that can run on this GPU; raise if one fails."""
    flags = ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", "-c", os.devnull]
    if find_spec("xdist") is not None:
        flags += ["-n", "8"]
    environment = os.environ | {"AEGAEON_TEST_DEVICE": "cuda:0", "OMP_NUM_THREADS": "1"}
    # Two engines cannot share a GPU.
    flags += ["-k", "not handed_off_sequence"]
    command = [sys.executable, "-m", "pytest", "--rootdir", ".", *flags, *_TESTS]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode != 0:
        raise AssertionError(result.stdout[-12000:] + result.stderr[-2000:])
    return result.stdout.strip().splitlines()[-1].strip("= ")


if __name__ == "__main__":
    main()
