"""What happens to queries, keys and values between their product and the attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch
from aegaeon_worker.kv.shape import BLOCK_TOKENS

#: Heads per program: few rows need many programs, many rows need little overhead.
_FEW_ROWS = 64
_HEADS_FEW_ROWS, _WARPS_FEW_ROWS = 4, 1
_HEADS, _WARPS = 16, 4


@dataclass(frozen=True)
class RotaryTables:
    """Where and how each row of a pass is written."""

    cos: torch.Tensor
    """float32 [T, D / 2]"""
    sin: torch.Tensor
    slots: torch.Tensor
    """int64 [T]: offset in elements of the token in the KV range, layer 0; -1 writes nothing."""


@triton.jit  # type: ignore[untyped-decorator]
def _tables_kernel(  # type: ignore[no-untyped-def]
    positions_ptr, rows_ptr, tables_ptr, frequencies_ptr, cos_ptr, sin_ptr, slots_ptr,
    table_stride, block_stride, token_stride, scaling, half,
    PER_ROW: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < half
    frequencies = tl.load(frequencies_ptr + offsets, mask=inside, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    position = tl.load(positions_ptr + row)
    sequence = row
    if not PER_ROW:
        sequence = tl.load(rows_ptr + row).to(tl.int64)
    used = position >= 0
    block = tl.load(tables_ptr + sequence * table_stride + position // TOKENS, mask=used, other=0)
    slot = block.to(tl.int64) * block_stride + position % TOKENS * token_stride
    tl.store(slots_ptr + row, tl.where(used, slot, -1))
    angles = position.to(tl.float32) * frequencies
    tl.store(cos_ptr + row * half + offsets, tl.cos(angles) * scaling, mask=inside)
    tl.store(sin_ptr + row * half + offsets, tl.sin(angles) * scaling, mask=inside)


def rotary_tables(
    positions: torch.Tensor,
    sequences: torch.Tensor | None,
    block_tables: torch.Tensor,
    frequencies: torch.Tensor,
    scaling: float,
    kv: torch.Tensor,
) -> RotaryTables:
    """Rotations and slots of rows at ``positions`` [T]; a negative position is padding.

    Row ``t`` belongs to sequence ``sequences[t]`` of ``block_tables`` [S, B]; None: to sequence t.
    """
    rows, half = positions.shape[0], frequencies.shape[0]
    cos = torch.empty(rows, half, dtype=torch.float32, device=positions.device)
    sin = torch.empty_like(cos)
    slots = torch.empty(rows, dtype=torch.int64, device=positions.device)
    launch(
        _tables_kernel, (rows,),
        positions, positions if sequences is None else sequences, block_tables, frequencies,
        cos, sin, slots,
        block_tables.stride(0), kv.stride(0), kv.stride(3), scaling, half,
        PER_ROW=sequences is None, BLOCK=triton.next_power_of_2(half), TOKENS=BLOCK_TOKENS,
        num_warps=1,
    )  # fmt: skip
    return RotaryTables(cos, sin, slots)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_and_store_kernel(  # type: ignore[no-untyped-def]
    qkv_ptr, cos_ptr, sin_ptr, slots_ptr, q_norm_ptr, k_norm_ptr, query_ptr, key_ptr, value_ptr,
    kv_ptr, qkv_part, qkv_row, layer_offset, value_offset, head_stride, eps,
    PARTS: tl.constexpr, QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    HALF: tl.constexpr, BLOCK_HEADS: tl.constexpr, NORM: tl.constexpr, DENSE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    columns = tl.arange(0, HALF)
    is_query = heads < QUERY_HEADS
    is_key = (heads >= QUERY_HEADS) & (heads < QUERY_HEADS + KV_HEADS)
    inside = (heads < QUERY_HEADS + 2 * KV_HEADS)[:, None] & (columns >= 0)[None, :]
    if NORM:
        q_first = tl.load(q_norm_ptr + columns).to(tl.float32)
        q_second = tl.load(q_norm_ptr + HALF + columns).to(tl.float32)
        k_first = tl.load(k_norm_ptr + columns).to(tl.float32)
        k_second = tl.load(k_norm_ptr + HALF + columns).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    at = row * qkv_row + heads[:, None] * (2 * HALF) + columns[None, :]
    first = tl.load(qkv_ptr + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(qkv_ptr + at + HALF, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        first += tl.load(qkv_ptr + part * qkv_part + at, mask=inside, other=0.0).to(tl.float32)
        second += tl.load(qkv_ptr + part * qkv_part + at + HALF, mask=inside, other=0.0).to(
            tl.float32
        )
    rotated = (is_query | is_key)[:, None]
    if NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        scale = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
        query = is_query[:, None]
        normed_first = first * scale * tl.where(query, q_first[None, :], k_first[None, :])
        normed_second = second * scale * tl.where(query, q_second[None, :], k_second[None, :])
        first = tl.where(rotated, normed_first, first)
        second = tl.where(rotated, normed_second, second)
    cos = tl.load(cos_ptr + row * HALF + columns)[None, :]
    sin = tl.load(sin_ptr + row * HALF + columns)[None, :]
    turned_first = tl.where(rotated, first * cos - second * sin, first)
    turned_second = tl.where(rotated, second * cos + first * sin, second)
    out_type = query_ptr.dtype.element_ty
    query_at = row * (QUERY_HEADS * 2 * HALF) + heads[:, None] * (2 * HALF) + columns[None, :]
    queries = is_query[:, None] & inside
    tl.store(query_ptr + query_at, turned_first.to(out_type), mask=queries)
    tl.store(query_ptr + query_at + HALF, turned_second.to(out_type), mask=queries)
    slot = tl.load(slots_ptr + row)
    kv_head = tl.where(is_key, heads - QUERY_HEADS, heads - QUERY_HEADS - KV_HEADS)
    kv_offset = tl.where(is_key, 0, value_offset).to(tl.int64) + kv_head * head_stride
    kv_at = slot + layer_offset + kv_offset[:, None] + columns[None, :]
    stored = inside & (heads >= QUERY_HEADS)[:, None]
    if DENSE:
        dense_at = (row * KV_HEADS + kv_head[:, None]) * (2 * HALF) + columns[None, :]
        keys = stored & is_key[:, None]
        values = stored & (heads >= QUERY_HEADS + KV_HEADS)[:, None]
        tl.store(key_ptr + dense_at, turned_first.to(out_type), mask=keys)
        tl.store(key_ptr + dense_at + HALF, turned_second.to(out_type), mask=keys)
        tl.store(value_ptr + dense_at, turned_first.to(out_type), mask=values)
        tl.store(value_ptr + dense_at + HALF, turned_second.to(out_type), mask=values)
    kv_type = kv_ptr.dtype.element_ty
    if slot >= 0:
        tl.store(kv_ptr + kv_at, turned_first.to(kv_type), mask=stored)
        tl.store(kv_ptr + kv_at + HALF, turned_second.to(kv_type), mask=stored)


def rotate_and_store(
    qkv: torch.Tensor,
    tables: RotaryTables,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
    kv: torch.Tensor,
    layer: int,
    *,
    dense: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Norm and rotate queries and keys, store keys and values in ``kv``; return queries [T, Hq, D].

    With ``dense`` also return keys and values [T, Hkv, D]; else they are empty.

    ``qkv`` is [T, (Hq + 2 Hkv) D] or partial sums [P, T, ...]; ``norms`` are the weights [D] of
    the query and the key norm, where the model has them.
    """
    rows, width = qkv.shape[-2:]
    kv_heads, dim = kv.shape[4:]
    query_heads = width // dim - 2 * kv_heads
    query = torch.empty(rows, query_heads, dim, dtype=kv.dtype, device=qkv.device)
    key, value = query.new_empty(2, rows if dense else 0, kv_heads, dim)
    block = _HEADS_FEW_ROWS if rows <= _FEW_ROWS else _HEADS
    q_norm, k_norm = norms or (query, query)
    partial = qkv.dim() == 3
    launch(
        _rotate_and_store_kernel, (rows, triton.cdiv(query_heads + 2 * kv_heads, block)),
        qkv, tables.cos, tables.sin, tables.slots, q_norm, k_norm, query, key, value, kv,
        qkv.stride(0) if partial else 0, qkv.stride(-2), layer * kv.stride(1), kv.stride(2),
        kv.stride(4), eps,
        PARTS=qkv.shape[0] if partial else 1, QUERY_HEADS=query_heads, KV_HEADS=kv_heads,
        HALF=dim // 2, BLOCK_HEADS=block, NORM=norms is not None, DENSE=dense,
        num_warps=_WARPS_FEW_ROWS if rows <= _FEW_ROWS else _WARPS,
    )  # fmt: skip
    return query, key, value
