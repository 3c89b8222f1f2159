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
