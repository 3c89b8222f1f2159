"""The native decoder as a served model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.models.interface import DecodeStep, StepInput
from aegaeon_worker.models.native.backend import Backend, StepAttention, choose_backend
from aegaeon_worker.models.native.packing import LinearPacking
from aegaeon_worker.models.native.plan import DecoderPlan
from aegaeon_worker.models.native.weights import DecoderWeights, place_fused
from aegaeon_worker.parallel.collectives import Collectives, embed
from aegaeon_worker.parallel.vocabulary import SharedVocabulary
from aegaeon_worker.weights.stage_gate import StageGate


class NativeModel:
    """A ``ServedModel`` of the Llama-like families."""

    backend: Backend
    """What it computes with; set by ``bind``, by the device of the weights."""

    def __init__(
        self,
        plan: DecoderPlan,
        packing: LinearPacking,
        collectives: Collectives,
        *,
        dtype: torch.dtype,
        max_model_len: int,
        kv_pieces: int,
    ) -> None:
        """``plan`` is that of one rank; ``kv_pieces`` as in ``KvShape``."""
        self._plan = plan
        self._packing = packing
        self._collectives = collectives
        attention = plan.attention
        self.layout = place_fused(plan, dtype)
        self.kv_shape = KvShape(
            plan.num_layers, attention.kv_heads, attention.head_dim, dtype, kv_pieces
        )
        self.vocab_size = plan.vocab_size
        self.max_model_len = max_model_len
        self._gate = StageGate(self.layout)

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See ``ServedModel``; ``tensors`` has the names of the layout."""
        bound = self._packing.bind(tensors)
        self._weights = DecoderWeights.of(bound, self._plan.num_layers)
        device, rows = self._weights.embedding.device, self._weights.head.shape[0]
        self._vocabulary = SharedVocabulary(self._collectives, self.vocab_size, rows)
        self.backend = choose_backend(device, self._plan.attention, self.kv_shape.dtype)

    def use_gate(self, gate: StageGate) -> None:
        """See ``ServedModel``."""
        self._gate = gate

    def outline(self) -> NativeModel | None:
        """A model whose passes launch what this one's do, over tensors without storage.

        It has layers of every kind, and two at least. None for one of several ranks, whose passes
        also speak to the others.
        """
        if self._collectives.ranks.size > 1:
            return None
        plan, windows = self._plan, self._plan.attention.windows
        count = max(2, *(windows.index(window) + 1 for window in set(windows)))
        embeddings, *layers, head = plan.stages
        plan = replace(
            plan,
            stages=(embeddings, *layers[:count], head),
            attention=replace(plan.attention, windows=windows[:count]),
        )
        outline = NativeModel(
            plan,
            LinearPacking({}),
            self._collectives,
            dtype=self.kv_shape.dtype,
            max_model_len=self.max_model_len,
            kv_pieces=1,
        )
        specs = [slot.spec for slot in outline.layout.slots()]
        outline.bind({s.name: torch.empty(s.shape, dtype=s.dtype, device="meta") for s in specs})
        outline.kv_shape = self.kv_shape
        return outline

    @property
    def decode_step(self) -> DecodeStep | None:
        """See ``ServedModel``."""
        return self.backend.decode_step(self.columns, self._vocabulary)

    @torch.inference_mode()
    def forward(self, step: StepInput) -> torch.Tensor:
        """See ``ServedModel``."""
        columns = self.columns(step.token_ids, self.backend.attention(step), step.logit_rows)
        return self._vocabulary.whole(columns)

    def columns(
        self, token_ids: torch.Tensor, attention: StepAttention, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """Run ``token_ids`` [T] through all layers: float32 logits of ``rows`` [R], or of all.

        They are the columns of this rank's share of the vocabulary.
        """
        backend, weights, eps = self.backend, self._weights, self._plan.attention.norm_eps
        self._gate.wait("embeddings")
        together = self._collectives
        residual = embed(together, token_ids, weights.embedding)
        delta: torch.Tensor | None = None
        for index, layer in enumerate(weights.layers):
            self._gate.wait(f"layer.{index}")
            hidden = backend.add_norm(delta, residual, layer.input_norm, eps)
            qkv = backend.linear(hidden, layer.qkv, layer.qkv_bias)
            attended = attention.attend(index, qkv, layer.head_norms)
            if rows is not None and layer is weights.layers[-1]:
                # All keys and values are stored, and nothing else of the other rows is needed.
                attended, residual = attended.index_select(0, rows), residual.index_select(0, rows)
                if not rows.shape[0]:
                    return residual.new_empty(0, weights.head.shape[0], dtype=torch.float32)
            delta = backend.linear(attended, layer.output, layer.output_bias)
            delta = together.sum_parts(delta, residual.dtype)
            hidden = backend.add_norm(delta, residual, layer.mlp_norm, eps)
            delta = backend.linear(backend.swiglu(hidden, layer.gate_up), layer.down, None)
            delta = together.sum_parts(delta, residual.dtype)
        self._gate.wait("head")
        hidden = backend.add_norm(delta, residual, weights.final_norm, eps)
        return backend.logits(hidden, weights.head)
