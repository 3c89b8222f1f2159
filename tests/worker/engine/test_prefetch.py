"""The next model comes while a turn runs, and that changes no token."""

from __future__ import annotations

from pathlib import Path

import pytest

from aegaeon_worker.engine import commands, events
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import make_checkpoint

pytestmark = pytest.mark.usefixtures("pace")

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


def test_kv_that_has_to_leave_is_saved_while_the_turn_before_still_runs(
    checkpoints: dict[str, Path], shm_dir: Path
) -> None:
    long = [[3 + number, *range(3, 202)] for number in range(6)]
    # Room for the weights of one model and the KV of its sequences.
    with EngineHarness(shm_dir, device_memory_bytes=8 * MIB) as engine:
        for path in checkpoints.values():
            engine.load(path)
        members = {name: [engine.add(name, prompt, 60) for prompt in long] for name in "ab"}
        engine.turn("a", members["a"])
        engine.turn("b", members["b"])
        engine.wait_ended(members["a"])
        # Those of the first turn have ended; the second has KV that a third has to wait for.
        others = [[9, *prompt] for prompt in long]  # none of which is kept from before
        more = [engine.add("a", prompt, NEW_TOKENS) for prompt in others]
        engine.turn("a", more)
        steps = 0
        while steps < 12:  # one copy at a time
            step = engine.wait_for(events.StepBatch)
            steps += step.turn_id == 2 and step.decode_sequences == len(long)
        engine.send(commands.LimitTurn(2, 1))
        while (started := engine.wait_for(events.TurnStarted)).turn_id != 3:
            pass
        store = engine.parts._driven._models.get("b").memory.kv  # type: ignore[union-attr]
        saved = sum(store[handle].num_tokens for handle in members["b"])
        assert saved > 1000
        assert started.switched
        assert 0 < started.kv_bytes < 6 * 4 * store.shape.block_nbytes
        engine.turn("b", members["b"])
        engine.wait_ended([*more, *members["b"]])
        expected = reference_tokens(checkpoints["a"], others, NEW_TOKENS)
        assert [engine.tokens(handle) for handle in more] == expected
        expected = reference_tokens(checkpoints["b"], long, 60)
        assert [engine.tokens(handle) for handle in members["b"]] == expected
