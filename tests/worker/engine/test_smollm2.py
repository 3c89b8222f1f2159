"""The real small model: every token equal to `transformers.generate`, whatever goes on beside."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from aegaeon.demo_model import fetch_demo_model
from aegaeon_worker.engine import events
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import assert_scored
from tests.worker.models.tiny import make_checkpoint

MIB = 1 << 20
NEW_TOKENS = 32
#: Around block edges, chunk edges, and far into the context.
LENGTHS = (
    *(1, 2, 3, 5, 8, 13, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 200),
    *(257, 600, 1100, 1500),
)
#: Prompts up to this length are generated as one padded batch by the reference.
BATCHED = 200
#: More KV than this many swapped blocks of 737,280 bytes does not fit the pool beside the weights.
POOL_BYTES = 640 * MIB

pytestmark = pytest.mark.timeout(240)


@dataclass(frozen=True)
class Workload:
    """Prompts of real text, and what the reference makes of them."""

    path: Path
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module")
def workload() -> Workload:
    path = fetch_demo_model()
    tokenizer = AutoTokenizer.from_pretrained(path)
    text = (Path(__file__).parents[3] / "LICENSE").read_text()
    ids = tokenizer.encode(text)
    prompts = [ids[start : start + length] for start, length in enumerate(LENGTHS)]
    return Workload(path, prompts, load_reference(path, prompts))


def load_reference(path: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Tokens of ``transformers.generate``, kept beside the model: they take half a minute."""
    versions = f"torch-{torch.__version__}-transformers-{transformers.__version__}"
    cache = path.parent / "references" / f"{path.name}-{versions}-{NEW_TOKENS}.json"
    if cache.exists():
        kept = json.loads(cache.read_text())
        if kept["prompts"] == prompts:
            expected: list[list[int]] = kept["expected"]
            return expected
    expected = generate_reference(path, prompts)
    cache.parent.mkdir(exist_ok=True)
    cache.write_text(json.dumps({"prompts": prompts, "expected": expected}))
    return expected


def generate_reference(path: Path, prompts: list[list[int]]) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.generation_config = GenerationConfig()
    batched = [prompt for prompt in prompts if len(prompt) <= BATCHED]
    groups = [batched, *[[prompt] for prompt in prompts if len(prompt) > BATCHED]]
    expected: list[list[int]] = []
    for group in groups:
        width = max(map(len, group))
        padded = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in group])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in group])
        output = model.generate(
            padded,
            attention_mask=mask,
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        expected += output[:, width:].tolist()
    return expected


@pytest.fixture
def shm_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert list(tmp_path.glob("aegaeon-*")) == []


def test_each_prompt_alone(workload: Workload, shm_dir: Path) -> None:
    with EngineHarness(shm_dir, device_memory_bytes=1024 * MIB) as engine:
        engine.load(workload.path, "smollm2")
        for prompt, expected in zip(workload.prompts, workload.expected, strict=True):
            assert engine.generate("smollm2", [prompt], NEW_TOKENS) == [expected], len(prompt)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_mixed_batches(workload: Workload, shm_dir: Path, seed: int) -> None:
    rng = random.Random(seed)
    order = rng.sample(range(len(LENGTHS)), len(LENGTHS))
    with EngineHarness(shm_dir, device_memory_bytes=1024 * MIB) as engine:
        engine.load(workload.path, "smollm2")
        handles: dict[int, int] = {}
        while order:
            size = rng.randint(1, 12)
            batch, order = order[:size], order[size:]
            for index in batch:
                handles[index] = engine.add("smollm2", workload.prompts[index], NEW_TOKENS)
            engine.turn("smollm2", [handles[index] for index in batch])
        engine.wait_ended(handles.values())
        for index, handle in handles.items():
            assert engine.tokens(handle) == workload.expected[index], LENGTHS[index]


@pytest.mark.parametrize(
    ("slab_bytes", "new_tokens", "recomputed"),
    # Without room in the slabs every turn prefills anew: shorter, or it takes minutes.
    [(64 * MIB, 24, False), (1 * MIB, 8, True)],
    ids=["swap", "recompute"],
)
def test_three_models_take_turns_on_a_device_that_holds_one(
    workload: Workload,
    shm_dir: Path,
    tmp_path: Path,
    slab_bytes: int,
    new_tokens: int,
    recomputed: bool,
) -> None:
    chosen = [0, 3, 7, 11, 16, 18]
    tiny = make_checkpoint("qwen3", tmp_path / "tiny", intermediate_size=2048)
    tiny_prompts = [[3 + index, 4, 5] for index in range(4)]
    with EngineHarness(
        shm_dir,
        device_memory_bytes=POOL_BYTES,
        cpu_num_slabs=4,
        cpu_slab_bytes=slab_bytes,
    ) as engine:
        engine.load(workload.path, "first")
        engine.load(workload.path, "second")
        engine.load(tiny, "tiny")
        alone = engine.generate("tiny", tiny_prompts, new_tokens)
        members = {
            name: [engine.add(name, workload.prompts[index], new_tokens) for index in chosen]
            for name in ("first", "second")
        }
        members["tiny"] = [engine.add("tiny", prompt, new_tokens) for prompt in tiny_prompts]
        engine.alternate(members, quota_ns=1, quotas=[200_000_000, 1_000_000, 1])
        for name in ("first", "second"):
            for index, handle in zip(chosen, members[name], strict=True):
                assert engine.tokens(handle) == workload.expected[index][:new_tokens], (
                    name,
                    LENGTHS[index],
                )
        assert [engine.tokens(handle) for handle in members["tiny"]] == alone
        started = [event for event in engine.log if isinstance(event, events.TurnStarted)]
        ended = [event for event in engine.log if isinstance(event, events.TurnEnded)]
        assert sum(event.switched for event in started) >= 6
        lost = sum(event.recomputed_sequences for event in ended)
        assert (lost > 0) == recomputed
        if not recomputed:
            assert sum(event.kv_bytes for event in started) > 0


def test_a_prompt_of_several_chunks_is_scored_beside_others(
    workload: Workload, shm_dir: Path
) -> None:
    """Tokens of real text, and a vocabulary that makes a chunk's logits 100 MB."""
    prompt = max((p for p in workload.prompts if len(p) < 1000), key=len)
    others = workload.prompts[:8]
    with EngineHarness(shm_dir, device_memory_bytes=POOL_BYTES) as engine:
        engine.load(workload.path, "smollm2")
        beside = [engine.add("smollm2", other, NEW_TOKENS) for other in others]
        handle = engine.add("smollm2", prompt, 2, prompt_logprobs=3)
        engine.turn("smollm2", [*beside, handle])
        engine.wait_ended([*beside, handle])
        assert [engine.tokens(one) for one in beside] == workload.expected[:8]
        assert_scored(engine.outputs[handle].prompt, workload.path, prompt, 3)
