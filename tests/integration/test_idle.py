"""Daemons that serve nobody leave the processor to others."""

from __future__ import annotations

import time

import psutil

from aegaeon import LLMService
from tests.integration.test_cancelled_streams import daemons_of

WINDOW_S = 10.0
#: The best of so many windows counts: a busy machine makes waking up dearer.
WINDOWS = 3
SHARE = 0.01


def cpu_s(daemons: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (daemon.cpu_times() for daemon in daemons))


def test_idle_daemons_use_under_one_percent_of_a_core(service: LLMService) -> None:
    daemons = list(daemons_of(service).values())
    shares: list[float] = []
    while len(shares) < WINDOWS and min(shares, default=1.0) >= SHARE:
        before, start = cpu_s(daemons), time.monotonic()
        time.sleep(WINDOW_S)
        shares.append((cpu_s(daemons) - before) / (time.monotonic() - start))
    assert min(shares) < SHARE, shares
