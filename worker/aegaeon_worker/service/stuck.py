"""Finds an engine whose thread is stuck, for instance in a kernel that never ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import torch

from aegaeon.errors import EngineError

#: Where nobody says otherwise. A GPU's longest step, its first, compiles kernels; a CPU may
#: compute one long prompt for longer than anybody could guess.
_GPU_LIMIT_S = 120.0


class EngineStuckError(EngineError):
    """The engine's thread does not come back: it can neither be stopped nor asked to give back what
    it has."""


def stuck_limit_s(given_s: float | None, device: torch.device) -> float:
    """Seconds without a sign of the thread after which it is stuck; 0 is never."""
    if given_s is not None:
        return given_s
    return _GPU_LIMIT_S if device.type == "cuda" else 0.0


async def wait_stuck(alive: Callable[[], Awaitable[object]], limit_s: float) -> EngineStuckError:
    """Return once ``alive`` has not returned within ``limit_s``, otherwise never."""
    while True:
        try:
            async with asyncio.timeout(limit_s):
                await alive()
        except TimeoutError:
            return EngineStuckError(
                f"the engine has been stuck in one step for {limit_s:g} s (--engine-timeout-s); "
                "this worker ends, and its requests go on elsewhere"
            )
        await asyncio.sleep(limit_s / 4)
