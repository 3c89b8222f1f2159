"""The native decoder's tensors: their places, and how a checkpoint fills them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from aegaeon_worker.models.native.plan import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    DecoderPlan,
    FusedTensor,
)
from aegaeon_worker.weights.layout import TensorSpec, WeightLayout


def place_fused(plan: DecoderPlan, dtype: torch.dtype) -> WeightLayout:
    """Lay out the fused tensors, stage by stage."""
    return WeightLayout.place(
        (stage, [TensorSpec(tensor.name, dtype, tensor.shape) for tensor in tensors])
        for stage, tensors in plan.stages
    )


class FusedSlices(Mapping[str, torch.Tensor]):
    """Views of the fused tensors under the names of the ``transformers`` module's own.

    Each fused tensor is asked for once, when its first part is, and is in ``taken`` from then on.
    """

    def __init__(self, plan: DecoderPlan, fused: Mapping[str, torch.Tensor]) -> None:
        self._fused = fused
        self.taken: dict[str, torch.Tensor] = {}
        self._owners: dict[str, FusedTensor] = {
            part: tensor
            for _, tensors in plan.stages
            for tensor in tensors
            for part in tensor.parts
        }
        self._views: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._views:
            owner = self._owners[name]
            fused = self.taken[owner.name] = self._fused[owner.name]
            views = torch.split(fused, list(owner.sizes))
            self._views.update(zip(owner.parts, views, strict=True))
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def __len__(self) -> int:
        return len(self._owners)


@dataclass(frozen=True)
class LayerWeights:
    """The tensors of one layer."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    """Of queries and of keys."""
    output: torch.Tensor
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], layer: int) -> LayerWeights:
        """Those of ``layer`` among the tensors of the layout."""
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        query_norm = tensors.get(attention + "q_norm.weight")
        return cls(
            input_norm=tensors[prefix + "input_layernorm.weight"],
            qkv=tensors[attention + "qkv_proj.weight"],
            qkv_bias=tensors.get(attention + "qkv_proj.bias"),
            head_norms=None
            if query_norm is None
            else (query_norm, tensors[attention + "k_norm.weight"]),
            output=tensors[attention + "o_proj.weight"],
            output_bias=tensors.get(attention + "o_proj.bias"),
            mlp_norm=tensors[prefix + "post_attention_layernorm.weight"],
            gate_up=tensors[prefix + "mlp.gate_up_proj.weight"],
            down=tensors[prefix + "mlp.down_proj.weight"],
        )


@dataclass(frozen=True)
class DecoderWeights:
    """All tensors of a model."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: torch.Tensor

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], num_layers: int) -> DecoderWeights:
        """Those among the tensors of the layout; a tied head is the embedding."""
        embedding = tensors[EMBEDDING]
        layers = tuple(LayerWeights.of(tensors, layer) for layer in range(num_layers))
        return cls(embedding, layers, tensors[FINAL_NORM], tensors.get(HEAD, embedding))
