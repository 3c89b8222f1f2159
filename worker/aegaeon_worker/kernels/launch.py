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


def launch(kernel: Any, grid: tuple[int, ...], *arguments: object, **options: object) -> None:
    """Launch a kernel that has the switch ``PDL`` on the current stream."""
    overlaps = _overlaps()
    if overlaps:
        options["launch_pdl"] = True
    kernel[grid](*arguments, PDL=overlaps, **options)
