"""The yardstick of a model switch: copying as many bytes within ordinary memory."""

from __future__ import annotations

import time

import torch


class MemoryCopy:
    """Two buffers that have been touched before, so that no page fault is measured."""

    def __init__(self, nbytes: int) -> None:
        self._source = torch.ones(nbytes, dtype=torch.uint8)
        self._target = torch.zeros(nbytes, dtype=torch.uint8)

    def run_ms(self) -> float:
        """One copy with torch's threads, in milliseconds."""
        start = time.perf_counter()
        self._target.copy_(self._source)
        return (time.perf_counter() - start) * 1e3
