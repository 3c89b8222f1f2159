"""Attention of one new token per sequence over its paged context."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch
from aegaeon_worker.kv.shape import BLOCK_TOKENS

_LOG2E = 1.4426950408889634
#: Keys per step of a program.
_TILE = 64
#: Programs that fill a large device: short of it, contexts are split.
_PROGRAMS = 512
_MAX_SPLITS = 32


@dataclass(frozen=True)
class DecodeSequences:
    """The sequences of a pass that add one token."""

    context_lens: torch.Tensor
    """int32 [S]: tokens in the KV, the new one included; 0 is padding and yields zeros."""
    block_tables: torch.Tensor
    """int64 [S, B]"""
    sequences: torch.Tensor | None
    """int32 [N]: which of the S these are; None for all."""
    rows: torch.Tensor | None
    """int32 [N]: their rows of the pass; None when row n is sequence n."""

    @property
    def count(self) -> int:
        """N."""
        return (self.context_lens if self.sequences is None else self.sequences).shape[0]


@triton.jit  # type: ignore[untyped-decorator]
def _decode_kernel(  # type: ignore[no-untyped-def]
    query_ptr, kv_ptr, tables_ptr, lens_ptr, sequences_ptr, rows_ptr, out_ptr, part_ptr, lse_ptr,
    table_stride, block_stride, layer_offset, value_offset, token_stride, head_stride,
    scale, window,
    GROUP: tl.constexpr, BLOCK_GROUP: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
    TILE: tl.constexpr, SPLITS: tl.constexpr, TOKENS: tl.constexpr, WINDOW: tl.constexpr,
    ALL: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Heads first: those of a sequence, whose keys lie side by side in memory, run at once.
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    item = tl.program_id(2)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    sequence, row = item, item
    if not ALL:
        sequence = tl.load(sequences_ptr + item)
        row = tl.load(rows_ptr + item)
    length = tl.load(lens_ptr + sequence)
    oldest = 0
    if WINDOW:
        oldest = tl.maximum(length - window, 0)
    first_tile = oldest // TILE
    tiles = tl.cdiv(length, TILE) - first_tile
    share = tl.cdiv(tiles, SPLITS)
    start = (first_tile + split * share) * TILE
    stop = tl.minimum(start + share * TILE, length)

    group = tl.arange(0, BLOCK_GROUP)
    columns = tl.arange(0, DIM)
    in_group = group < GROUP
    head = kv_head * GROUP + group
    at = (row.to(tl.int64) * HEADS + head)[:, None] * DIM + columns[None, :]
    query = tl.load(query_ptr + at, mask=in_group[:, None], other=0.0)
    table = tables_ptr + sequence.to(tl.int64) * table_stride
    keys = kv_ptr + layer_offset + kv_head * head_stride
    best = tl.full([BLOCK_GROUP], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_GROUP], tl.float32)
    acc = tl.zeros([BLOCK_GROUP, DIM], tl.float32)
    for base in range(start, stop, TILE):
        tokens = base + tl.arange(0, TILE)
        seen = (tokens < stop) & (tokens >= oldest)
        block = tl.load(table + tokens // TOKENS, mask=seen, other=0).to(tl.int64)
        token_at = block * block_stride + tokens % TOKENS * token_stride
        key_at = token_at[:, None] + columns[None, :]
        key = tl.load(keys + key_at, mask=seen[:, None], other=0.0)
        value = tl.load(keys + value_offset + key_at, mask=seen[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        # Every tile in range holds a token that is seen, so the maximum is finite.
        new_best = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - new_best[:, None])
        shrink = tl.exp2(best - new_best)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(
            weights.to(value.dtype), value, acc * shrink[:, None], input_precision=PRECISION
        )
        best = new_best
    if SPLITS == 1:
        out = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=in_group[:, None])
    else:
        part = (item * HEADS + head).to(tl.int64) * SPLITS + split
        tl.store(part_ptr + part[:, None] * DIM + columns[None, :], acc, mask=in_group[:, None])
        tl.store(lse_ptr + part * 2, best, mask=in_group)
        tl.store(lse_ptr + part * 2 + 1, total, mask=in_group)


@triton.jit  # type: ignore[untyped-decorator]
def _combine_kernel(  # type: ignore[no-untyped-def]
    part_ptr, lse_ptr, rows_ptr, out_ptr, HEADS: tl.constexpr, DIM: tl.constexpr,
    SPLITS: tl.constexpr, ALL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    head = tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = item
    if not ALL:
        row = tl.load(rows_ptr + item)
    splits = tl.arange(0, SPLITS)
    columns = tl.arange(0, DIM)
    part = (item * HEADS + head).to(tl.int64) * SPLITS + splits
    best = tl.load(lse_ptr + part * 2)
    total = tl.load(lse_ptr + part * 2 + 1)
    acc = tl.load(part_ptr + part[:, None] * DIM + columns[None, :])
    highest = tl.max(best, 0)
    # A sequence without tokens has no highest score; its total is 0.
    weight = tl.exp2(best - tl.where(highest == float("-inf"), 0.0, highest))
    norm = tl.sum(weight * total, 0)
    out = tl.sum(acc * weight[:, None], 0) / tl.where(norm > 0, norm, 1.0)
    at = (row.to(tl.int64) * HEADS + head) * DIM + columns
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty))


def choose_splits(count: int, kv_heads: int, tokens: int) -> int:
    """Into how many parts contexts of up to ``tokens`` are split: a power of two."""
    wanted = max(1, _PROGRAMS // (count * kv_heads))
    useful = max(1, tokens // (2 * _TILE))
    splits = min(wanted, useful, _MAX_SPLITS)
    return 1 << (splits.bit_length() - 1)


def decode_attention(
    query: torch.Tensor,
    rows: DecodeSequences,
    kv: torch.Tensor,
    layer: int,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    splits: int,
) -> None:
    """Attend with ``query`` [T, Hq, D] at ``rows`` and write those rows of ``out``."""
    _, heads, dim = query.shape
    count, kv_heads = rows.count, kv.shape[4]
    partial, lse = out, out
    if splits > 1:
        partial = torch.empty(
            count * heads * splits * dim, dtype=torch.float32, device=query.device
        )
        lse = torch.empty(count * heads * splits * 2, dtype=torch.float32, device=query.device)
    everything = rows.sequences is None
    sequences = rows.context_lens if rows.sequences is None else rows.sequences
    row_index = rows.context_lens if rows.rows is None else rows.rows
    launch(
        _decode_kernel, (kv_heads, splits, count),
        query, kv, rows.block_tables, rows.context_lens, sequences, row_index, out, partial, lse,
        rows.block_tables.stride(0), kv.stride(0), layer * kv.stride(1), kv.stride(2),
        kv.stride(3), kv.stride(4), scale * _LOG2E, window or 0,
        GROUP=heads // kv_heads, BLOCK_GROUP=max(16, triton.next_power_of_2(heads // kv_heads)),
        HEADS=heads, DIM=dim, TILE=_TILE, SPLITS=splits, TOKENS=BLOCK_TOKENS,
        WINDOW=window is not None, ALL=everything,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        launch(
            _combine_kernel, (count, heads),
            partial, lse, row_index, out,
            HEADS=heads, DIM=dim, SPLITS=splits, ALL=everything, num_warps=1,
        )  # fmt: skip
