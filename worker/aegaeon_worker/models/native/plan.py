"""Which models the native decoder covers, and how it runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from transformers import PreTrainedModel

from aegaeon_worker.models.probe import AttentionFacts

#: Model type → the module that its causal LM must come from, unmodified.
_FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        name: f"transformers.models.{name}.modeling_{name}"
        for name in ("llama", "mistral", "phi3", "qwen2", "qwen3")
    }
)
#: Head sizes that the attention kernels take.
_HEAD_DIMS = frozenset({16, 32, 64, 128})

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True)
class FusedTensor:
    """A tensor of the native layout: tensors of the ``transformers`` module, along dimension 0."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]
    sizes: tuple[int, ...]
    """Extent of each part along dimension 0."""


@dataclass(frozen=True)
class AttentionPlan:
    """How every layer attends."""

    query_heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    norm_eps: float
    frequencies: torch.Tensor
    """float32 [head_dim / 2], on the CPU: rotation per position."""
    rope_scaling: float
    """Factor of the rotated queries and keys."""

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class DecoderPlan:
    """A model that the native decoder runs: its tensors by stage, and its attention."""

    stages: tuple[tuple[str, tuple[FusedTensor, ...]], ...]
    attention: AttentionPlan
    vocab_size: int

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.attention.windows)

    @property
    def tied(self) -> bool:
        """The head is the embedding."""
        return all(tensor.name != HEAD for tensor in self.stages[-1][1])


def plan_decoder(
    module: PreTrainedModel, facts: AttentionFacts, ties: Mapping[str, str], dtype: torch.dtype
) -> DecoderPlan | None:
    """The plan to run ``module`` natively; None if any part of it is not fully covered.

    ``ties`` are the tied tensors and their sources, as the checkpoint has them.
    """
    config = module.config
    if _FAMILIES.get(config.model_type) != type(module).__module__:
        return None
    plain = config.hidden_act == "silu" and not facts.masked and not module._get_dtype_plan(dtype)
    if not plain or facts.head_dim not in _HEAD_DIMS or set(ties) - {HEAD}:
        return None
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    stages: list[tuple[str, tuple[FusedTensor, ...]]] = []
    stages.append(("embeddings", (_fuse(EMBEDDING, [EMBEDDING], shapes),)))
    for layer in range(len(facts.windows)):
        stages.append((f"layer.{layer}", _layer(f"model.layers.{layer}.", shapes)))
    head = [name for name in (FINAL_NORM, HEAD) if name not in ties]
    stages.append(("head", tuple(_fuse(name, [name], shapes) for name in head)))
    covered = {part for _, tensors in stages for tensor in tensors for part in tensor.parts}
    rope = module.model.rotary_emb
    if covered | set(ties) != set(shapes) or 2 * rope.inv_freq.shape[0] != facts.head_dim:
        return None
    attention = AttentionPlan(
        query_heads=config.num_attention_heads,
        kv_heads=facts.num_kv_heads,
        head_dim=facts.head_dim,
        windows=facts.windows,
        norm_eps=config.rms_norm_eps,
        frequencies=rope.inv_freq.float(),
        rope_scaling=float(rope.attention_scaling),
    )
    return DecoderPlan(tuple(stages), attention, config.vocab_size)


def _layer(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[FusedTensor, ...]:
    """The tensors of one layer in the order of their use; those that it lacks are left out."""
    qkv = ["q_proj", "k_proj", "v_proj"]
    fused = (
        ("input_layernorm.weight", ["input_layernorm.weight"]),
        ("self_attn.qkv_proj.weight", [f"self_attn.{name}.weight" for name in qkv]),
        ("self_attn.qkv_proj.bias", [f"self_attn.{name}.bias" for name in qkv]),
        ("self_attn.q_norm.weight", ["self_attn.q_norm.weight"]),
        ("self_attn.k_norm.weight", ["self_attn.k_norm.weight"]),
        ("self_attn.o_proj.weight", ["self_attn.o_proj.weight"]),
        ("self_attn.o_proj.bias", ["self_attn.o_proj.bias"]),
        ("post_attention_layernorm.weight", ["post_attention_layernorm.weight"]),
        ("mlp.gate_up_proj.weight", ["mlp.gate_proj.weight", "mlp.up_proj.weight"]),
        ("mlp.down_proj.weight", ["mlp.down_proj.weight"]),
    )
    tensors = []
    for name, parts in fused:
        # Some families store the fused tensor itself.
        sources = [name] if prefix + name in shapes else parts
        if all(prefix + part in shapes for part in sources):
            tensors.append(_fuse(prefix + name, [prefix + part for part in sources], shapes))
    return tuple(tensors)


def _fuse(name: str, parts: list[str], shapes: Mapping[str, tuple[int, ...]]) -> FusedTensor:
    sizes = tuple(shapes[part][0] for part in parts)
    return FusedTensor(name, (sum(sizes), *shapes[parts[0]][1:]), tuple(parts), sizes)
