"""An engine of two GPUs, each in a process of its own; skipped where there are none."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch

from aegaeon_worker.config import WorkerConfig
from aegaeon_worker.engine import events
from aegaeon_worker.engine.assembly import WorkerParts
from aegaeon_worker.parallel.mirrored_steps import MirroredSteps
from aegaeon_worker.sampling.parameters import SamplingParameters
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="no two CUDA devices"
)

MIB = 1 << 20
NEW_TOKENS = 24
FAMILIES = ("llama", "gemma2", "qwen3")
DRAWN = SamplingParameters(temperature=0.8, top_k=20, seed=3)


def run_rank(config: WorkerConfig, stop: Event) -> None:
    """Rank 1, until it is told to stop."""
    parts = WorkerParts(config)
    try:
        parts.start()
        stop.wait()
    finally:
        parts.close()


@contextmanager
def two_ranks(shm_dir: Path) -> Iterator[EngineHarness]:
    share = 17 * MIB / torch.cuda.mem_get_info()[0]
    options: dict[str, Any] = {
        "device": "auto",
        "device_chunk_bytes": 2 * MIB,
        "memory_utilization": share,
        "tensor_parallel_size": 2,
        "rank_timeout_s": 60.0,
    }
    harness = EngineHarness(shm_dir, **options)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    other = context.Process(target=run_rank, args=(replace(harness.config, worker_index=1), stop))
    other.start()
    try:
        with harness:
            yield harness
            stop.set()
            other.join(60)
    finally:
        other.kill()


def test_float32_tokens_are_those_of_transformers_across_switches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(n)] for n in (1, 17, 90, 200)]
    paths = {
        family: make_checkpoint(family, tmp_path / family, seed)
        for seed, family in enumerate(FAMILIES)
    }
    recorded: list[object] = []
    apply = MirroredSteps.apply

    def noted(self: MirroredSteps, order: Any) -> None:
        apply(self, order)
        recorded.extend(self.recorded)

    monkeypatch.setattr(MirroredSteps, "apply", noted)
    with two_ranks(tmp_path) as engine:
        for path in paths.values():
            engine.load(path, dtype=torch.float32)
        members = {name: [engine.add(name, p, NEW_TOKENS) for p in prompts] for name in paths}
        engine.alternate(members, quota_ns=2_000_000)
        outputs = {name: [engine.tokens(h) for h in handles] for name, handles in members.items()}
        drawn = [engine.add("llama", p, NEW_TOKENS, sampling=DRAWN) for p in prompts]
        again = [engine.add("llama", p, NEW_TOKENS) for p in prompts]
        engine.turn("llama", [*drawn, *again])
        engine.wait_ended([*drawn, *again])
        together = [engine.tokens(handle) for handle in again]
        sampled = [engine.tokens(handle) for handle in drawn]
        started = [event for event in engine.log if isinstance(event, events.TurnStarted)]
    for name, path in paths.items():
        assert outputs[name] == reference_tokens(path, prompts, NEW_TOKENS), name
    assert together == outputs["llama"]
    assert all(len(tokens) == NEW_TOKENS for tokens in sampled)
    assert sum(event.switched for event in started) > 4
    assert recorded, "no step has been recorded"
