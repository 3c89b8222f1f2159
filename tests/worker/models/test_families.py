"""Every supported family computes what ``transformers`` computes, however it is batched."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.worker.models.paged_runner import PagedRunner
from tests.worker.models.tiny import FAMILIES, VOCAB_SIZE, WINDOW, make_checkpoint

NEW_TOKENS = 64
#: Below one block, one block exactly, and beyond every window.
PROMPT_LENS = (1, 16, 45, 3 * WINDOW)


def _prompts() -> dict[int, list[int]]:
    draw = random.Random(7)
    return {
        index: [draw.randrange(3, VOCAB_SIZE) for _ in range(length)]
        for index, length in enumerate(PROMPT_LENS)
    }


class Reference:
    """First-token logits and greedy tokens of every prompt, by ``transformers``."""

    def __init__(self, path: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        )
        model.generation_config.eos_token_id = None
        self.logits: dict[int, torch.Tensor] = {}
        self.tokens: dict[int, list[int]] = {}
        for index, prompt in _prompts().items():
            ids = torch.tensor([prompt])
            with torch.inference_mode():
                self.logits[index] = model(ids).logits[0]
                tokens = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=NEW_TOKENS,
                    do_sample=False,
                )
            self.tokens[index] = tokens[0, len(prompt) :].tolist()


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param))


@cache
def _reference(path: Path) -> Reference:
    return Reference(path)


@pytest.fixture
def reference(checkpoint: Path) -> Reference:
    return _reference(checkpoint)


def test_reference_tokens_are_diverse(reference: Reference) -> None:
    for tokens in reference.tokens.values():
        assert len(set(tokens)) > 5


def test_prompt_logits_equal_transformers_in_every_row(
    checkpoint: Path, reference: Reference
) -> None:
    runner = PagedRunner(checkpoint)
    for index, prompt in _prompts().items():
        logits = runner.step({index: prompt}, last_only=False)
        torch.testing.assert_close(logits, reference.logits[index], atol=1e-4, rtol=1e-5)


def test_greedy_tokens_equal_transformers_alone(checkpoint: Path, reference: Reference) -> None:
    runner = PagedRunner(checkpoint)
    for index, prompt in _prompts().items():
        assert runner.generate({index: prompt}, NEW_TOKENS)[index] == reference.tokens[index]


@pytest.mark.parametrize("chunk", [None, 7, 33])
def test_greedy_tokens_equal_transformers_in_a_mixed_batch(
    checkpoint: Path, reference: Reference, chunk: int | None
) -> None:
    runner = PagedRunner(checkpoint, seed=chunk or 0)
    assert runner.generate(_prompts(), NEW_TOKENS, chunk=chunk) == reference.tokens
