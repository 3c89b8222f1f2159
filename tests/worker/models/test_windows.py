"""Each layer sees as far back as its type says, and no block beyond its own is touched."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.worker.models.paged_runner import PagedRunner
from tests.worker.models.tiny import VOCAB_SIZE, WINDOW, make_checkpoint

FULL, SLIDING = "full_attention", "sliding_attention"


def draw_prompt(length: int) -> list[int]:
    draw = random.Random(length)
    return [draw.randrange(3, VOCAB_SIZE) for _ in range(length)]


def reference(path: Path, prompt: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([prompt])).logits[0]
    return logits


@pytest.mark.parametrize(
    "layer_types",
    [[FULL] * 3, [SLIDING] * 3, [SLIDING, FULL, SLIDING]],
    ids=["all full", "all sliding", "mixed"],
)
@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "gpt_oss"])
def test_layer_types_decide_the_window(tmp_path: Path, family: str, layer_types: list[str]) -> None:
    # Qwen2 drops its window from the config unless told to use it; the others ignore the switch.
    make_checkpoint(
        family,
        tmp_path,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=layer_types,
    )
    prompt = draw_prompt(4 * WINDOW)
    expected = reference(tmp_path, prompt)
    runner = PagedRunner(tmp_path)
    got = [runner.step({0: prompt[:100]}, last_only=False)]
    got += [runner.step({0: [token]}) for token in prompt[100:]]
    # Late rows of GPT-OSS in float32 are 3e-4 from float64, in transformers too; a wrong window
    # is off by more than 1.
    torch.testing.assert_close(torch.cat(got), expected, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_long_prompts_and_short_ones_share_a_batch(tmp_path: Path, family: str) -> None:
    """Long enough for several pieces per prompt, and for several batches per decode step."""
    make_checkpoint(family, tmp_path, max_position_embeddings=2048)
    prompts = {0: draw_prompt(1301), 1: draw_prompt(3), 2: draw_prompt(300), 3: draw_prompt(16)}
    runner = PagedRunner(tmp_path)
    runner.step({index: prompt[:-1] for index, prompt in prompts.items()})
    logits = runner.step({index: prompt[-1:] for index, prompt in prompts.items()})
    for index, prompt in prompts.items():
        expected = reference(tmp_path, prompt)[-1]
        torch.testing.assert_close(logits[index], expected, atol=1e-4, rtol=1e-5)
