"""Six small models of different families with random weights, and a Poisson workload for them."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from aegaeon.model_spec import ModelSpec

#: About 30 million parameters each: 120 MB, of which a step of one sequence reads all.
_SIZES = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
_FAMILIES = ("llama", "qwen2", "qwen3")
NUM_MODELS = 6
WEIGHT_BYTES = 130 << 20


def make_models(folder: Path, ttft_slo_s: float, tpot_slo_s: float) -> list[ModelSpec]:
    """Write the checkpoints; each has weights of its own."""
    specs = []
    for number in range(NUM_MODELS):
        torch.manual_seed(number)
        config = AutoConfig.for_model(_FAMILIES[number % len(_FAMILIES)], **_SIZES)
        path = folder / f"model-{number}"
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        model.save_pretrained(path)
        specs.append(ModelSpec(path.name, str(path), ttft_slo_s=ttft_slo_s, tpot_slo_s=tpot_slo_s))
    return specs


def write_workload(path: Path, rate: float, seconds: float, seed: int) -> int:
    """Poisson arrivals of ``rate`` per second and model, lengths uniform; returns their number.

    Prompts have 32 to 192 tokens, outputs 50 to 150.
    """
    draw = random.Random(seed)
    rows = []
    for number in range(NUM_MODELS):
        time = draw.expovariate(rate)
        while time < seconds:
            rows.append((time, f"model-{number}", draw.randint(32, 192), draw.randint(50, 150)))
            time += draw.expovariate(rate)
    lines = ["Request Time,Model Name,Input Length,Output Length"]
    for time, model, prompt, output in sorted(rows):
        lines.append(f"0:{int(time) // 60}:{time % 60:.6f},{model},{prompt},{output}")
    path.write_text("\n".join(lines) + "\n")
    return len(rows)
