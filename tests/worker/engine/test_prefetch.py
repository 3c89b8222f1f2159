"""The next model comes while a turn runs, and that changes no token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon_worker.engine import events
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import make_checkpoint

NEW_TOKENS = 24
MIB = 1 << 20
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        name: make_checkpoint(
            "llama", root / name, seed, intermediate_size=2048, num_hidden_layers=3
        )
        for seed, name in enumerate(("a", "b"))
    }


@pytest.fixture
def shm_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert list(tmp_path.glob("aegaeon-*")) == [], "the worker left files behind"


def test_the_queued_model_is_prefetched_without_a_hint(
    checkpoints: dict[str, Path], shm_dir: Path
) -> None:
    with EngineHarness(shm_dir, device_memory_bytes=64 * MIB) as engine:
        for path in checkpoints.values():
            engine.load(path)
        first = engine.add("a", PROMPT, NEW_TOKENS)
        second = engine.add("b", PROMPT, NEW_TOKENS)
        engine.turn("a", [first])
        engine.turn("b", [second])
        assert engine.wait_for(events.TurnStarted).switched
        engine.wait_ended([first])
        assert not engine.wait_for(events.TurnStarted).switched
        engine.wait_ended([second])


@pytest.mark.parametrize(
    ("pool_mib", "prefetch", "copied"),
    [(64, "b", False), (64, None, True), (64, "unknown", True), (8, "b", True)],
)
def test_a_turn_after_a_prefetch_copies_nothing_if_both_models_fit(
    checkpoints: dict[str, Path], shm_dir: Path, pool_mib: int, prefetch: str, copied: bool
) -> None:
    with EngineHarness(shm_dir, device_memory_bytes=pool_mib * MIB) as engine:
        for path in checkpoints.values():
            engine.load(path)
        first = engine.add("a", PROMPT, NEW_TOKENS)
        second = engine.add("b", PROMPT, NEW_TOKENS)
        engine.turn("a", [first], prefetch_model=prefetch)
        started = engine.wait_for(events.TurnStarted)
        assert started.switched
        engine.wait_ended([first])
        engine.turn("b", [second])
        started = engine.wait_for(events.TurnStarted)
        assert started.switched is copied
        assert (started.weight_bytes > 0) is copied
        engine.wait_ended([second])
        for name, handle in (("a", first), ("b", second)):
            expected = reference_tokens(checkpoints[name], [PROMPT], NEW_TOKENS)
            assert [engine.tokens(handle)] == expected
