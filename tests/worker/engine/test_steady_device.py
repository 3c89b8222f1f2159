"""The device that benchmarks measure the host with."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from benchmarks.in_process import InProcessEngine
from benchmarks.service import NodeSizes
from benchmarks.steady_device import SteadyDevice, StepTimes, expected_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

STEP_NS, PROMPT_TOKEN_NS = 1_000_000, 10_000
COUNT = 20


def test_steps_follow_one_another_and_every_token_is_the_right_one(tmp_path: Path) -> None:
    path = make_checkpoint("qwen3", tmp_path / "model")
    device = SteadyDevice(StepTimes(STEP_NS, PROMPT_TOKEN_NS))
    prompts = [[3 + n * 7 % 400 for n in range(length)] for length in (1, 5, 40)]
    sizes = NodeSizes(64 << 20, 64 << 20, cpu_num_slabs=2, cpu_slab_bytes=4 << 20)
    with device.computing():
        engine = InProcessEngine(path, sizes, 1, device.execution)
        try:
            tokens = engine.generate(prompts, COUNT).tokens
        finally:
            engine.close()
    assert tokens == [expected_tokens(prompt, COUNT, VOCAB_SIZE) for prompt in prompts]
    assert all(before.ended_ns <= after.began_ns for before, after in pairwise(device.steps))
    prefill, *decoding = [step.ended_ns - step.began_ns for step in device.steps]
    assert prefill == STEP_NS + PROMPT_TOKEN_NS * sum(map(len, prompts))
    assert decoding == [STEP_NS] * (COUNT - 1)
    assert [step.decoding for step in device.steps] == [0] + [len(prompts)] * (COUNT - 1)
