"""The whole engine over a device whose copies happen as late as they may."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon_worker.device import choice
from aegaeon_worker.engine import events
from tests.worker.device.fake_cuda import FakeCuda
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

pytestmark = pytest.mark.usefixtures("pace")

NEW_TOKENS = 6
MIB = 1 << 20
FAMILIES = ("llama", "gemma2", "qwen2")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    driver = FakeCuda()
    monkeypatch.setattr(choice, "BoundDriver", lambda index: driver)
    yield driver
    assert not driver.chunks
    assert not driver.pinned
    assert not driver.reserved


@pytest.mark.parametrize("pool_mib", [8, 24])
def test_tokens_are_those_of_transformers_across_switches_swaps_and_prefetches(
    tmp_path: Path, driver: FakeCuda, monkeypatch: pytest.MonkeyPatch, pool_mib: int
) -> None:
    monkeypatch.setattr(driver, "free_nbytes", lambda: pool_mib * MIB)
    rng = random.Random(1)
    prompts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(n)] for n in (1, 17, 90)]
    paths = {
        family: make_checkpoint(
            family, tmp_path / family, seed, intermediate_size=2048, num_hidden_layers=3
        )
        for seed, family in enumerate(FAMILIES)
    }
    options = {"device": "cuda:0", "memory_utilization": 1.0, "shm_dir": tmp_path}
    with EngineHarness(**options) as engine:
        for path in paths.values():
            engine.load(path)
        members = {name: [engine.add(name, p, NEW_TOKENS) for p in prompts] for name in paths}
        followers = dict(zip(FAMILIES, (*FAMILIES[1:], FAMILIES[0]), strict=True))
        while not all(engine.outputs[h].ended for handles in members.values() for h in handles):
            for name, handles in members.items():
                # A quota of one nanosecond: every turn makes one step.
                engine.turn(name, handles, quota_ns=1, prefetch_model=followers[name])
            for _ in members:
                engine.wait_for(events.TurnEnded)
        outputs = {name: [engine.tokens(h) for h in handles] for name, handles in members.items()}
    for name, path in paths.items():
        assert outputs[name] == reference_tokens(path, prompts, NEW_TOKENS), name
