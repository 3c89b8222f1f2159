"""The engine on a real GPU; skipped where there is none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

NEW_TOKENS = 24
MIB = 1 << 20
FAMILIES = ("llama", "gemma2", "qwen3")


def test_float32_tokens_are_those_of_transformers_across_switches(tmp_path: Path) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(n)] for n in (1, 17, 90, 200)]
    paths = {
        family: make_checkpoint(family, tmp_path / family, seed)
        for seed, family in enumerate(FAMILIES)
    }
    # Six chunks, so that not all of the models' weights and KV fit together.
    share = 13 * MIB / torch.cuda.mem_get_info()[0]
    options = {"device": "cuda:0", "memory_utilization": share, "device_chunk_bytes": 2 * MIB}
    with EngineHarness(tmp_path, **options) as engine:
        for path in paths.values():
            engine.load(path, dtype=torch.float32)
        members = {name: [engine.add(name, p, NEW_TOKENS) for p in prompts] for name in paths}
        engine.alternate(members, quota_ns=1_000_000)
        outputs = {name: [engine.tokens(h) for h in handles] for name, handles in members.items()}
    for name, path in paths.items():
        assert outputs[name] == reference_tokens(path, prompts, NEW_TOKENS), name
