"""Attention over dense keys and values."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    causal: bool,
    scaling: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attend with ``query`` [B, Hq, T, D] over ``key``, ``value`` [B, Hkv, S, D]; [B, Hq, T, D].

    ``mask`` is additive and broadcasts to [B, 1, T, S]. With ``softcap`` or ``sinks`` a mask is
    required and ``causal`` is not available: no fused kernel knows them.
    """
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=causal,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    assert mask is not None
    batch, heads, tokens, dim = query.shape
    kv_heads = key.shape[1]
    scale = dim**-0.5 if scaling is None else scaling
    # Query heads that share a KV head are folded into the rows of one product.
    folded = query.reshape(batch, kv_heads, -1, dim)
    scores = torch.matmul(folded, key.transpose(2, 3)).mul_(scale)
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    scores = scores.view(batch, heads, tokens, -1) + mask
    probabilities = _softmax(scores, sinks).to(value.dtype)
    out = torch.matmul(probabilities.view(batch, kv_heads, -1, key.shape[2]), value)
    return out.view(batch, heads, tokens, dim)


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax in float32; a sink [Hq] is one more score per head, whose share is dropped."""
    if sinks is None:
        return scores.softmax(-1, dtype=torch.float32)
    column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, column], -1).softmax(-1, dtype=torch.float32)[..., :-1]
