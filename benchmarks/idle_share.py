"""What daemons cost while nothing is asked of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

_DAEMONS = ("aegaeon_scheduler", "aegaeon_worker")


def find_daemons() -> list[psutil.Process]:
    """Scheduler and workers among this process's children."""
    children = psutil.Process().children(recursive=True)
    daemons = [
        child for child in children if any(name in " ".join(child.cmdline()) for name in _DAEMONS)
    ]
    if len(daemons) < len(_DAEMONS):
        raise RuntimeError(f"expected a scheduler and a worker as children, found {daemons}")
    return daemons


def idle_share(daemons: Sequence[psutil.Process], seconds: float) -> float:
    """Processor time of all daemons together, as a share of one core."""
    before, start = _cpu_seconds(daemons), time.perf_counter()
    time.sleep(seconds)
    return (_cpu_seconds(daemons) - before) / (time.perf_counter() - start)


def _cpu_seconds(daemons: Sequence[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (daemon.cpu_times() for daemon in daemons))
