"""A few rounds in CI; `make chaos` and `make soak` run as many as wanted."""

from __future__ import annotations

import os

import pytest

from tests.chaos.rounds import ROUNDS_PER_CLUSTER, Outcome, campaign
from tests.chaos.soak import soak

#: The same in every run, so that a gate does not change by itself; `make chaos` draws one.
SEED = int(os.environ.get("CHAOS_SEED", "7"))
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "8"))
#: In so short a time a worker still touches its device pool for the first time.
GROWTH_BYTES = 64 << 20
SOAK_MINUTES = float(os.environ.get("SOAK_MINUTES", "0.15"))


@pytest.mark.timeout(400)  # beside many other programs
def test_no_token_is_lost_and_nothing_leaks_in_chaos() -> None:
    print(f"seed {SEED}")
    outcomes: list[Outcome] = []
    with campaign(SEED) as running:
        for block in range(2):
            running.run(block * ROUNDS_PER_CLUSTER, ROUNDS // 2, outcomes.append)
    assert len(outcomes) == ROUNDS
    assert all(outcome.faults for outcome in outcomes)


@pytest.mark.timeout(400)  # beside many other programs
def test_memory_is_flat_at_twice_the_capacity() -> None:
    report = soak(SOAK_MINUTES, SEED)
    assert report.served
    assert report.refused
    assert max(report.growth().values()) < GROWTH_BYTES, report.growth()
