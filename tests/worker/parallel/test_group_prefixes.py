"""KV of common beginnings on an engine of several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from aegaeon_worker.engine import events
from aegaeon_worker.kv.prefix_use import Reused
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import make_checkpoint
from tests.worker.parallel.test_group import MIB, RankedHarness

NEW_TOKENS = 12
PROMPT = list(range(5, 65))


@pytest.mark.timeout(120)
def test_ranks_find_prefixes_in_the_memory_of_the_host(tmp_path: Path) -> None:
    """Rank 0 decides for all; every rank has kept its own piece."""
    paths = {
        family: make_checkpoint(family, tmp_path / family, seed, intermediate_size=2048)
        for seed, family in enumerate(("llama", "gemma3_text"))
    }
    expected = {name: reference_tokens(path, [PROMPT], NEW_TOKENS) for name, path in paths.items()}
    shm_dir = tmp_path / "shm"
    shm_dir.mkdir()
    with RankedHarness(shm_dir, 2, device_memory_bytes=6 * MIB, cpu_slab_bytes=1 * MIB) as engine:
        for path in paths.values():
            engine.load(path)
        for _ in range(3):
            for name in paths:
                assert engine.generate(name, [PROMPT], NEW_TOKENS) == expected[name]
        started = [event for event in engine.log if isinstance(event, events.TurnStarted)]
        assert all(event.switched for event in started), "the device holds one of them"
        assert [e.num_tokens for e in engine.log if isinstance(e, Reused)] == [48] * 4
    assert list(shm_dir.glob("*aegaeon-*")) == [], "the ranks left files behind"
