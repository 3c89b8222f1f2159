"""How fast a device is, measured in a fraction of a second at the worker's start."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

#: Each quantity is measured so often at least, and for so long at most; the best time counts,
#: because others can only slow a measurement down.
_ROUNDS = 3
_LIMIT_S = 0.05


@dataclass(frozen=True)
class DeviceSpeed:
    """Limits that a device comes close to with large tensors, per second."""

    memory_bytes_per_s: int
    """Reading its memory, in a product of a matrix and a vector."""
    host_link_bytes_per_s: int
    """Copies from pinned host memory."""
    flops_per_s: int
    """Products of matrices in the numeric type of its weights; a multiplication and an addition are
    two operations."""


@dataclass(frozen=True)
class _Sizes:
    """Of the tensors that are measured."""

    rows: int
    """Of a matrix of ``width`` columns that no cache holds."""
    width: int
    square: int
    """Of square matrices that keep all units busy."""
    repeats: int
    """In a row, so that starting them does not count."""


_CPU = _Sizes(rows=16_384, width=1_024, square=640, repeats=1)
_GPU = _Sizes(rows=65_536, width=4_096, square=4_096, repeats=8)


def measure_speed(device: torch.device, dtype: torch.dtype) -> DeviceSpeed:
    """Measure with temporary tensors: 128 MiB on a CPU; 600 MiB on a GPU, 512 MiB on its host."""
    sizes = _CPU if device.type == "cpu" else _GPU
    matrix = torch.ones(sizes.rows, sizes.width, dtype=dtype, device=device)
    vector = torch.ones(sizes.width, dtype=dtype, device=device)
    reading_s = _best_s(device, lambda: torch.mv(matrix, vector), sizes.repeats)
    copying_s = _copying_s(device, matrix)
    square = matrix.view(-1)[: sizes.square**2].view(sizes.square, sizes.square)
    computing_s = _best_s(device, lambda: torch.mm(square, square), sizes.repeats)
    speed = DeviceSpeed(
        round(matrix.nbytes / reading_s),
        round(matrix.nbytes / copying_s),
        round(2 * sizes.square**3 / computing_s),
    )
    if device.type == "cuda":
        del matrix, vector, square
        torch.cuda.empty_cache()
    return speed


def _copying_s(device: torch.device, target: torch.Tensor) -> float:
    source = torch.empty(
        target.shape, dtype=target.dtype, device="cpu", pin_memory=device.type == "cuda"
    )
    return _best_s(device, lambda: target.copy_(source, non_blocking=True), 1)


def _best_s(device: torch.device, work: Callable[[], object], repeats: int) -> float:
    """Shortest time of one ``work``, after a first one that does not count."""
    work()
    best, begin = float("inf"), time.perf_counter()
    for number in range(1_000):
        _wait(device)
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        _wait(device)
        end = time.perf_counter()
        best = min(best, (end - start) / repeats)
        if number + 1 >= _ROUNDS and end - begin > _LIMIT_S:
            break
    return max(best, 1e-9)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
