"""Plain ``transformers`` on the same GPU and the same checkpoint."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.gpu_engine_cases import CONTEXT, prompts
from benchmarks.report import Figure

_TOKENS = 33


def transformers_figures(path: Path) -> list[Figure]:
    """Milliseconds per greedy step of ``generate``: batch 1 and 32, dynamic cache."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, device_map="cuda")
    model.eval()  # type: ignore[no-untyped-call]
    model.generation_config.eos_token_id = None
    figures = []
    for batch in (1, 32):
        ids = torch.tensor(prompts(batch, CONTEXT, 1), device="cuda")
        _generate_s(model, ids, 2)
        longer, shorter = _generate_s(model, ids, _TOKENS), _generate_s(model, ids, 1)
        step = (longer - shorter) / (_TOKENS - 1) * 1e3
        figures.append(Figure(f"transformers, 8B: decode step, batch {batch}", "ms", [step]))
        figures.append(Figure(f"transformers, 8B: {batch} x {CONTEXT}", "ms", [shorter * 1e3]))
    return figures


@torch.inference_mode()
def _generate_s(model: torch.nn.Module, ids: torch.Tensor, count: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    model.generate(  # type: ignore[operator]
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    torch.cuda.synchronize()
    return time.perf_counter() - start
