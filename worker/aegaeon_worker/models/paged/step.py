"""The attention of one forward pass over several packed sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import nn

from aegaeon_worker.models.interface import StepInput
from aegaeon_worker.models.paged.core import dense_attention
from aegaeon_worker.models.paged.decode import DecodeBatch, decode_batches
from aegaeon_worker.models.paged.prompt import PromptPiece, prompt_pieces
from aegaeon_worker.models.paged.store import KvStore

_Plan: TypeAlias = tuple[list[DecodeBatch], list[PromptPiece]]


class PagedPass:
    """Writes each layer's new keys and values, then attends; indices are computed once per pass."""

    def __init__(self, step: StepInput, windows: Sequence[int | None], *, masked: bool) -> None:
        self._step = step
        self._store = KvStore(step)
        self._windows = windows
        self._masked = masked
        self._plans: dict[int | None, _Plan] = {}

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
        options: Mapping[str, object],
    ) -> torch.Tensor:
        """See ``AttentionPass``; the window is the layer's own, whatever ``options`` say."""
        layer = module.layer_idx
        assert isinstance(layer, int)
        return self.attend_layer(
            layer, query, key, value, scaling=scaling, softcap=softcap, sinks=sinks
        )

    def attend_layer(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Store ``key`` and ``value`` [1, Hkv, T, D]; attend with ``query``: [1, T, Hq, D]."""
        self._store.write(layer, key, value)
        batches, pieces = self._plan(self._windows[layer])
        out: torch.Tensor | None = None
        for batch in batches:
            rows = query[0] if batch.rows is None else query[0].index_select(1, batch.rows)
            keys, values = batch.read(layer)
            part = dense_attention(
                rows.transpose(0, 1).unsqueeze(2),
                keys,
                values,
                mask=batch.mask,
                causal=False,
                scaling=scaling,
                softcap=softcap,
                sinks=sinks,
            ).permute(2, 0, 1, 3)
            if batch.rows is None:
                return part
            out = _like(query) if out is None else out
            out.index_copy_(1, batch.rows, part)
        for piece in pieces:
            keys, values = piece.keys(self._store, layer, key, value)
            part = dense_attention(
                query[:, :, piece.start : piece.end],
                keys,
                values,
                mask=piece.mask,
                causal=piece.mask is None,
                scaling=scaling,
                softcap=softcap,
                sinks=sinks,
            ).transpose(1, 2)
            if part.shape[1] == query.shape[2]:
                return part
            out = _like(query) if out is None else out
            out[:, piece.start : piece.end] = part
        assert out is not None
        return out

    def _plan(self, window: int | None) -> _Plan:
        plan = self._plans.get(window)
        if plan is None:
            batches = list(decode_batches(self._step, self._store, window))
            pieces = list(prompt_pieces(self._step, self._store, window, masked=self._masked))
            plan = self._plans[window] = (batches, pieces)
        return plan


def _like(query: torch.Tensor) -> torch.Tensor:
    """An empty output [1, T, Hq, D] for ``query`` [1, Hq, T, D]."""
    _, heads, tokens, dim = query.shape
    return query.new_empty(1, tokens, heads, dim)
