"""How kernels are launched: one after another, but each set up while its predecessor ends."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def _overlaps() -> bool:
    """Whether the device knows programmatic dependent launch (Hopper and newer).

    A kernel may then start before its predecessor has ended; it reads what no kernel writes
    (weights), and waits before it touches anything else.
    """
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: object) -> None:
    """Launch a kernel that has the switch ``PDL`` on the current stream.

    Over tensors without storage it is compiled for the current device instead, so that launches
    with such arguments find it there; see `aegaeon_worker.engine.compiling`.
    """
    overlaps = _overlaps()
    if overlaps:
        options["launch_pdl"] = True
    first = arguments[0]
    if getattr(first, "base", first).is_meta:  # of a descriptor
        kernel.warmup(*arguments, grid=grid, PDL=overlaps, **options)
        return
    kernel[grid](*arguments, PDL=overlaps, **options)
