"""What an engine without work holds on to."""

from __future__ import annotations

import random
from pathlib import Path

from aegaeon_worker.engine import commands, events
from tests.worker.engine.harness import EngineHarness
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

POOL_BYTES = 64 << 20


def test_an_idle_engine_holds_no_slab_after_its_stream_was_replaced(tmp_path: Path) -> None:
    """Copies that ended sequences leave behind would hold one, which other workers may need."""
    paths = [
        make_checkpoint(family, tmp_path / family, seed, intermediate_size=2048)
        for seed, family in enumerate(["llama", "qwen3"])
    ]
    chance = random.Random(1)
    prompts = [chance.choices(range(3, VOCAB_SIZE), k=length) for length in (5, 16, 90, 200)]
    (tmp_path / "shm").mkdir()
    with EngineHarness(tmp_path / "shm", device_memory_bytes=POOL_BYTES) as engine:
        for path in paths:
            engine.load(path)
        for number in range(12):
            name = paths[number % 2].name
            engine.turn(name, [engine.add(name, prompt, 400) for prompt in prompts])
            for _ in range(5 + number):
                engine.wait_for(events.StepBatch)
            engine.send(commands.Attach(engine._inbox.put))
            engine.wait_for(events.Ready)
            assert engine.wait_for(events.MemoryUsage).host_kv_bytes == 0
