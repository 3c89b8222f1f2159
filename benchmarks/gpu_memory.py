"""The memory of a GPU worker against the limits of the machine, measured in the same run.

Needs one NVIDIA GPU with 48 GB free, 48 GB of free shared memory and no network. First the
device's and the memory manager's tests run on the GPU; every case then checks the bytes it moved.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks import gpu_memory_cases as cases
from benchmarks.gpu_node import LAYOUT_8B
from benchmarks.machine import describe_command, describe_machine
from benchmarks.report import Figure, Report, Target

_TESTS = ("tests/worker/device", "tests/worker/kv")
#: Beyond copying the bytes, a switch may take this share of the copy and these milliseconds.
_SWITCH_SHARE, _SWITCH_MS = 0.05, 15.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared-memory-dir", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    # Without the project's settings, which name plugins that a GPU machine may not have.
    plain = ["-c", os.devnull, "--rootdir", ".", "--import-mode", "importlib"]
    command = [sys.executable, "-m", "pytest", "-q", *plain, "-k", "cuda", *_TESTS]
    subprocess.run(command, check=True)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(
        dir=options.shared_memory_dir, prefix="aegaeon-bench-"
    ) as folder:
        for case in (
            cases.link_speed,
            cases.second_process,
            cases.map_cost,
            cases.graph_replay,
            cases.cycles,
            cases.kv_swap,
            cases.pinning_beside_compute,
            cases.cold_switch,
            cases.decode_beside_prefetch,
        ):
            start = time.perf_counter()
            figures += case(Path(folder))
            print(f"{case.__name__}: {time.perf_counter() - start:.1f} s", flush=True)
    report = Report(
        title="GPU memory",
        date=datetime.now(UTC).date().isoformat(),
        command=describe_command("benchmarks.gpu_memory"),
        machine=describe_machine() | {"gpu": torch.cuda.get_device_name()},
        versions={name: version(name) for name in ("torch", "cuda-bindings")},
        settings={"chunk": "64 MiB", "weights": f"{LAYOUT_8B.nbytes} bytes"},
        figures=figures,
        targets=_targets({figure.name: figure.median for figure in figures}),
    )
    report.write(options.results, "gpu-memory")
    print(report.markdown())
    if not all(target.met for target in report.targets):
        raise SystemExit(1)


def _targets(median: dict[str, float]) -> list[Target]:
    copy_ms = LAYOUT_8B.nbytes / median["link, host to device"] / 1e6
    limit_ms = copy_ms * (1 + _SWITCH_SHARE) + _SWITCH_MS
    switches = [name for name in median if name.startswith("cold switch")]
    decode_ms = median["decode pass alone"]
    return [
        *(Target(name, median[name], "ms", limit_ms, at_least=False) for name in switches),
        *(
            Target(name, median[name], "GB/s", 0.9 * median[f"link, {way}"], at_least=True)
            for name, way in _kv_figures()
        ),
        Target(
            "decode pass beside a prefetch",
            median["decode pass beside a prefetch"],
            "ms",
            1.05 * decode_ms,
            at_least=False,
        ),
        Target(
            "switch to a prefetched model",
            median["switch to a prefetched model"],
            "ms",
            10.0,
            at_least=False,
        ),
    ]


def _kv_figures() -> list[tuple[str, str]]:
    return [
        (f"KV {way}, blocks {layout}", link)
        for way, link in (("out", "device to host"), ("in", "host to device"))
        for layout in ("in runs", "scattered")
    ]


if __name__ == "__main__":
    main()
