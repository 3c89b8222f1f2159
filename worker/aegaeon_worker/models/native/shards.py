"""One rank's part of the native decoder, by the plan that its families share.

Query, key and value heads, and the columns between the two halves of a feed-forward layer, are
divided among the ranks, and with them the matrices that these go into, whose products are summed.
Embedding and head are divided by vocabulary. Norms are on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aegaeon_worker.models.native.plan import (
    EMBEDDING,
    HEAD,
    AttentionPlan,
    DecoderPlan,
    FusedTensor,
)
from aegaeon_worker.models.shares import FIRST_ONLY, WHOLE, Extent, Share, divided, kv_pieces


@dataclass(frozen=True)
class ShardedPlan:
    """What a rank runs, and how the tensors of the ``transformers`` module are shared for it."""

    plan: DecoderPlan
    """Shapes and heads are those of one rank; the vocabulary is the whole one."""
    shares: Mapping[str, Share]
    """By name of the module's tensor."""
    kv_pieces: int
    """Different pieces of a token's KV over all ranks."""


def shard_plan(path: Path, plan: DecoderPlan, size: int) -> ShardedPlan:
    """Divide ``plan`` among ``size`` ranks; ``ModelUnsupportedError`` if it does not divide."""
    if size == 1:
        return ShardedPlan(plan, {}, 1)
    attention = plan.attention
    pieces = kv_pieces(path, attention.query_heads, attention.kv_heads, size)
    shares: dict[str, Share] = {}
    stages = []
    for stage, tensors in plan.stages:
        for tensor in tensors:
            for part in tensor.parts:
                shares[part] = _share(path, part, tensor, attention, size, pieces)
        stages.append((stage, tuple(_shard(tensor, shares) for tensor in tensors)))
    own = replace(
        attention,
        query_heads=attention.query_heads // size,
        kv_heads=attention.kv_heads // pieces,
    )
    return ShardedPlan(replace(plan, stages=tuple(stages), attention=own), shares, pieces)


def _share(
    path: Path, part: str, tensor: FusedTensor, attention: AttentionPlan, size: int, pieces: int
) -> Share:
    length = tensor.sizes[tensor.parts.index(part)]
    if part in (EMBEDDING, HEAD):
        return Share((Extent(length, size),))
    owner, leaf = part.split(".")[-2:]
    query = Extent(attention.query_heads * attention.head_dim, size)
    kv = Extent(attention.kv_heads * attention.head_dim, pieces)
    match owner:
        case "q_proj":
            return Share((query,))
        case "k_proj" | "v_proj":
            return Share((kv,))
        case "qkv_proj":
            return Share((query, kv, kv))
        case "gate_proj" | "up_proj":
            return divided(path, "an intermediate size", length, size)
        case "gate_up_proj":
            half = divided(path, "an intermediate size", length // 2, size)
            return Share(half.extents * 2)
        case "o_proj" | "down_proj":
            # What a matrix adds beyond its product is added once, not by every rank.
            return (
                FIRST_ONLY if leaf == "bias" else divided(path, "a width", tensor.shape[1], size, 1)
            )
    return WHOLE


def _shard(tensor: FusedTensor, shares: Mapping[str, Share]) -> FusedTensor:
    whole = tensor.shape[1:]
    parts = [
        shares[part].shape((length, *whole))
        for part, length in zip(tensor.parts, tensor.sizes, strict=True)
    ]
    sizes = tuple(shape[0] for shape in parts)
    return FusedTensor(tensor.name, (sum(sizes), *parts[0][1:]), tensor.parts, sizes)
