"""The peer: `transformers.generate` on one padded batch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.workload import Run


class TransformersPeer:
    """One attention implementation of transformers; peers of one path share their weights."""

    def __init__(self, model: Any, attention: str, pad_token_id: int = 0) -> None:
        self.name = f"transformers.generate, {attention}"
        self._model = model
        self._attention = attention
        self._pad_token_id = pad_token_id

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Run:
        """Pad on the left, generate greedily, and cut the prompts off again."""
        self._model.set_attn_implementation(self._attention)
        start = time.perf_counter()
        width = max(map(len, prompts))
        pads = [width - len(prompt) for prompt in prompts]
        rows = [
            [self._pad_token_id] * pad + prompt for pad, prompt in zip(pads, prompts, strict=True)
        ]
        mask = [[0] * pad + [1] * (width - pad) for pad in pads]
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=torch.tensor(rows),
                attention_mask=torch.tensor(mask),
                max_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=self._pad_token_id,
            )
        tokens: list[list[int]] = output[:, width:].tolist()
        return Run(time.perf_counter() - start, tokens)


def load_peers(model_path: Path) -> list[TransformersPeer]:
    """Every attention implementation that transformers has for CPUs, in float32."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    model.eval()  # type: ignore[no-untyped-call]
    model.generation_config.eos_token_id = None  # ignored by every competitor
    return [TransformersPeer(model, attention) for attention in ("sdpa", "eager")]
