"""Tiny checkpoints with random weights, of many model families."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB_SIZE = 512
#: The window of the families that slide: a few blocks, so that prompts can exceed it.
WINDOW = 40

_COMMON: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
)
_MOE: Mapping[str, Any] = MappingProxyType(
    {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
)
_FAMILIES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {"tie_word_embeddings": True},
        "qwen2": {},
        "qwen3": {"tie_word_embeddings": True},
        "mistral": {"sliding_window": WINDOW},
        "gemma2": {
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 20.0,
            "tie_word_embeddings": True,
        },
        "gemma3_text": {
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "tie_word_embeddings": True,
        },
        "phi3": {"head_dim": None},
        "olmo2": {"head_dim": None},
        "gpt2": {"head_dim": None, "num_key_value_heads": None, "tie_word_embeddings": True},
        "qwen3_moe": dict(_MOE),
        "gpt_oss": {
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    }
)
#: Every family that ``make_checkpoint`` knows.
FAMILIES = tuple(_FAMILIES)


def make_checkpoint(family: str, folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Write a random checkpoint of ``family`` to ``folder``; ``overrides`` change its config."""
    settings = {**_COMMON, **_FAMILIES[family], **overrides}
    config = AutoConfig.for_model(
        family, **{key: value for key, value in settings.items() if value is not None}
    )
    model = AutoModelForCausalLM.from_config(config)
    randomize(model, seed)
    model.save_pretrained(folder)
    return folder


def randomize(model: PreTrainedModel, seed: int) -> None:
    """Draw every parameter, norms and biases too, so that none is left at a neutral value."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        base, scale = _distribution(name)
        with torch.no_grad():
            parameter.copy_(base + scale * noise)
    model.tie_weights()


def _distribution(name: str) -> tuple[float, float]:
    """Mean and standard deviation that keep greedy tokens diverse."""
    if name.endswith("bias"):
        return 0.0, 0.1
    if "norm" in name or "ln_" in name:
        return 1.0, 0.3
    # Large embeddings drown the layers, and a tied head then repeats one token for ever.
    return 0.0, 0.05 if "embed" in name or "wte" in name else 0.3
