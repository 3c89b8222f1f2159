"""What the GPU itself can do: the limits that figures are held against."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

_COPY_NBYTES = 4 << 30
_PRODUCT = 8192


def event_ms(work: Callable[[], object], repeats: int) -> list[float]:
    """Times of ``work`` on the GPU after two runs to warm up, in milliseconds."""
    for _ in range(2):
        work()
    times = []
    for _ in range(repeats):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return times


def copy_gbps() -> float:
    """Bytes read and written per second by a large copy, in GB/s."""
    source = torch.randn(_COPY_NBYTES // 4, device="cuda")
    target = torch.empty_like(source)
    ms = statistics.median(event_ms(lambda: target.copy_(source), 5))
    return 2 * _COPY_NBYTES / ms / 1e6


def link_gbps() -> float:
    """Bytes per second of a large copy from pinned host memory, in GB/s."""
    source = torch.empty(_COPY_NBYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(_COPY_NBYTES, dtype=torch.uint8, device="cuda")
    ms = statistics.median(event_ms(lambda: target.copy_(source, non_blocking=True), 5))
    return _COPY_NBYTES / ms / 1e6


def product_tflops() -> float:
    """Rate of a large bfloat16 product of random matrices, in TFLOP/s."""
    a, b = torch.randn(2, _PRODUCT, _PRODUCT, device="cuda", dtype=torch.bfloat16)
    ms = statistics.median(event_ms(lambda: a @ b, 10))
    return 2 * _PRODUCT**3 / ms / 1e9
