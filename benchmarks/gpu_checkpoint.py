"""Checkpoints of real shapes with random weights, written as a user would have them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedConfig

from aegaeon_worker.models.build import build_module

_SHARD_NBYTES = 4 << 30


def write_checkpoint(folder: Path, config: PreTrainedConfig, seed: int, device: str) -> int:
    """Write config and bfloat16 weights, drawn on ``device``; returns the bytes of the weights."""
    folder.mkdir(parents=True)
    config.architectures = ["Qwen3ForCausalLM"]
    config.eos_token_id = 2
    config.save_pretrained(folder)
    module = build_module(folder, config, torch.bfloat16, trust_remote_code=False)
    generator = torch.Generator(device).manual_seed(seed)
    total, shard, number = 0, dict[str, torch.Tensor](), 0
    for name, tensor in module.state_dict().items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        drawn = torch.empty(tensor.shape, dtype=torch.bfloat16, device=device)
        drawn.normal_(1.0 if "norm" in name else 0.0, 0.02, generator=generator)
        shard[name] = drawn.cpu()
        total += drawn.nbytes
        if sum(part.nbytes for part in shard.values()) > _SHARD_NBYTES:
            _write_shard(folder, shard, number)
            shard, number = {}, number + 1
    _write_shard(folder, shard, number)
    _write_index(folder)
    return total


def _write_shard(folder: Path, shard: dict[str, torch.Tensor], number: int) -> None:
    if shard:
        save_file(shard, folder / f"model-{number:05d}.safetensors", {"format": "pt"})


def _write_index(folder: Path) -> None:
    places: dict[str, str] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            places |= dict.fromkeys(opened.keys(), file.name)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
