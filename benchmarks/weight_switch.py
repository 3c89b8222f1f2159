"""Cost of switching between two models in the weight cache against copying the bytes.

Prints the median switch (unload one model, load the other) and the median of a plain
``Tensor.copy_`` between ordinary host tensors of the same size, measured alternately.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from aegaeon_worker.device.cpu import CpuDevice
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.layout import TensorSpec, WeightLayout
from aegaeon_worker.weights.resident import ResidentWeights

NUM_LAYERS = 30


def build_layout(nbytes: int) -> WeightLayout:
    head = nbytes // 5
    layer = (nbytes - head) // NUM_LAYERS
    groups = [("embeddings", head)] + [(f"layer {i}", layer) for i in range(NUM_LAYERS)]
    return WeightLayout.place(
        (name, [TensorSpec(name, torch.float32, (size // 4,))]) for name, size in groups
    )


def timed_ms(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def fill_with(value: float) -> Callable[[Mapping[str, torch.Tensor]], None]:
    def fill(views: Mapping[str, torch.Tensor]) -> None:
        for view in views.values():
            view.fill_(value)

    return fill


def measure(root: Path, nbytes: int, rounds: int) -> tuple[list[float], list[float]]:
    layout = build_layout(nbytes)
    device = CpuDevice(layout.nbytes + (64 << 20))
    cache = WeightCache(root, 2 * layout.nbytes + (64 << 20))

    def add_model(name: str, value: float) -> ResidentWeights:
        fill = fill_with(value)
        return ResidentWeights(
            device, name, layout, lambda: cache.acquire(name, name, layout, fill)
        )

    models = [add_model("a", 1.0), add_model("b", 2.0)]
    source = torch.ones(layout.nbytes, dtype=torch.uint8)
    target = torch.ones(layout.nbytes, dtype=torch.uint8)

    def switch(old: ResidentWeights, new: ResidentWeights) -> None:
        old.unload()
        new.load()

    for model in models:
        model.pin()
        model.load()
        model.unload()
    switches, copies = [], []
    for number in range(rounds):
        copies.append(timed_ms(lambda: target.copy_(source)))
        old, new = models[(number + 1) % 2], models[number % 2]
        switches.append(timed_ms(partial(switch, old, new)))
        first = next(iter(new.tensors().values()))
        assert first[0] == first[-1] == 1.0 + number % 2
    for model in models:
        model.close()
    cache.close()
    device.close()
    return switches, copies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=513, help="weight bytes in MiB")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shared-memory-dir", type=Path, default=Path("/dev/shm"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(
        dir=options.shared_memory_dir, prefix="aegaeon-bench-"
    ) as root:
        switches, copies = measure(Path(root), options.mib << 20, options.rounds)
    switch_ms, copy_ms = statistics.median(switches), statistics.median(copies)
    print(
        f"weights {options.mib} MiB, {options.threads} threads: switch {switch_ms:.1f} ms, "
        f"copy_ {copy_ms:.1f} ms, ratio {switch_ms / copy_ms:.2f}, "
        f"difference {switch_ms - copy_ms:+.1f} ms"
    )


if __name__ == "__main__":
    main()
