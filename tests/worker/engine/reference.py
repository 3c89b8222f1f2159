"""What `transformers` generates from the same files, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig


def reference_log_probabilities(checkpoint: Path, tokens: Sequence[int]) -> torch.Tensor:
    """Log-softmax of the logits at every position of ``tokens``: float32 [T, vocab]."""
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(tokens)])).logits[0]
    return logits.log_softmax(-1)


def assert_scored(
    told: Sequence[tuple[float, dict[int, float]]],
    checkpoint: Path,
    prompt: Sequence[int],
    count: int,
    first: int = 1,
) -> None:
    """What was told of ``prompt``, from position ``first`` on, is what ``transformers`` finds: of
    its tokens, and of ``count`` most probable ones."""
    expected = reference_log_probabilities(checkpoint, prompt)[first - 1 : -1]
    assert len(told) == len(prompt) - first
    own = expected.gather(1, torch.tensor(list(prompt[first:]))[:, None]).squeeze(1)
    torch.testing.assert_close(torch.tensor([v for v, _ in told]), own, atol=1e-4, rtol=0)
    ids = torch.tensor([list(top) for _, top in told], dtype=torch.int64).view(len(told), count)
    values = torch.tensor([list(top.values()) for _, top in told]).view(len(told), count)
    torch.testing.assert_close(values, expected.topk(count).values, atol=1e-4, rtol=0)
    torch.testing.assert_close(values, expected.gather(1, ids), atol=1e-4, rtol=0)
    assert bool((values.diff(dim=1) <= 0).all())


def reference_tokens(
    checkpoint: Path, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[list[int]]:
    """Greedy tokens of ``transformers.generate``, one prompt at a time, end tokens ignored."""
    # Fused attention of some versions ignores what a model caps its scores with.
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    model.generation_config = GenerationConfig()
    results = []
    for prompt in prompts:
        output = model.generate(
            torch.tensor([list(prompt)]),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        results.append(output[0, len(prompt) :].tolist())
    return results
