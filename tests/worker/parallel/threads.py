"""The ranks of a group as threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch

from aegaeon_worker.parallel.communicator import Communicator
from aegaeon_worker.parallel.ranks import Ranks

R = TypeVar("R")
_TIMEOUT_S = 60.0


def on_ranks(folder: Path, size: int, work: Callable[[Communicator], R]) -> list[R]:
    """What ``work`` returns on every rank, by rank."""

    def run(rank: int) -> R:
        communicator = Communicator(Ranks(rank, size), torch.device("cpu"), _TIMEOUT_S)
        communicator.connect(folder / f"meeting-of-{size}")
        try:
            return work(communicator)
        finally:
            communicator.disconnect()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))
