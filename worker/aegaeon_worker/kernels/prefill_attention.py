"""Attention of several new tokens per sequence, causal, over their paged context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch
from aegaeon_worker.kv.shape import BLOCK_TOKENS

_LOG2E = 1.4426950408889634
#: Queries per program.
_QUERIES = 128


@dataclass(frozen=True)
class PrefillTiles:
    """Runs of up to ``_QUERIES`` new tokens of one sequence, the longest work first."""

    fields: torch.Tensor
    """int32 [N, 4]: sequence, first row of the pass, position of that row, rows."""

    @classmethod
    def plan(
        cls,
        sequences: Sequence[int],
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        skipped: Sequence[int],
        device: torch.device,
    ) -> PrefillTiles:
        """The tiles of ``sequences``, out of all those of a pass.

        The first ``skipped`` new tokens of each are left out.
        """
        chosen, row, fields = set(sequences), 0, []
        for sequence, (query_len, length) in enumerate(zip(query_lens, context_lens, strict=True)):
            if sequence in chosen:
                for start in range(skipped[sequence], query_len, _QUERIES):
                    position = length - query_len + start
                    rows = min(_QUERIES, query_len - start)
                    fields.append((sequence, row + start, position, rows))
            row += query_len
        fields.sort(key=lambda tile: -tile[2])
        return cls(torch.tensor(fields, dtype=torch.int32).to(device, non_blocking=True))


@triton.jit  # type: ignore[untyped-decorator]
def _prefill_step(  # type: ignore[no-untyped-def]
    query, acc, best, total, base, positions, table, keys,
    value_offset, block_stride, token_stride, scale, window, stop,
    DIM: tl.constexpr, KEYS: tl.constexpr, TOKENS: tl.constexpr, WINDOW: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tokens = base + tl.arange(0, KEYS)
    columns = tl.arange(0, DIM)
    if MASKED:
        inside = tokens < stop
        block = tl.load(table + tokens // TOKENS, mask=inside, other=0).to(tl.int64)
    else:
        block = tl.load(table + tokens // TOKENS).to(tl.int64)
    token_at = block * block_stride + tokens % TOKENS * token_stride
    key_at = token_at[:, None] + columns[None, :]
    if MASKED:
        key = tl.load(keys + key_at, mask=inside[:, None], other=0.0)
        value = tl.load(keys + value_offset + key_at, mask=inside[:, None], other=0.0)
    else:
        key = tl.load(keys + key_at)
        value = tl.load(keys + value_offset + key_at)
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    if MASKED:
        seen = tokens[None, :] <= positions[:, None]
        if WINDOW:
            seen = seen & (tokens[None, :] > positions[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, 1) * scale)
    # A window may hide a whole tile from a late query: no maximum yet, and nothing to add.
    safe_best = new_best
    if WINDOW:
        safe_best = tl.where(new_best == float("-inf"), 0.0, new_best)
    weights = tl.exp2(scores * scale - safe_best[:, None])
    shrink = tl.exp2(best - safe_best)
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(value.dtype), value, acc * shrink[:, None], input_precision=PRECISION)
    return acc, new_best, total


@triton.jit  # type: ignore[untyped-decorator]
def _prefill_kernel(  # type: ignore[no-untyped-def]
    query_ptr, kv_ptr, tables_ptr, tiles_ptr, out_ptr,
    table_stride, block_stride, layer_offset, value_offset, token_stride, head_stride,
    scale, window,
    GROUP: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, TOKENS: tl.constexpr, WINDOW: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    tile = tiles_ptr + tl.program_id(1) * 4
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    sequence = tl.load(tile).to(tl.int64)
    first_row = tl.load(tile + 1)
    first = tl.load(tile + 2)
    rows = tl.load(tile + 3)
    lanes = tl.arange(0, QUERIES)
    columns = tl.arange(0, DIM)
    used = lanes < rows
    positions = first + lanes
    at = ((first_row + lanes).to(tl.int64) * HEADS + head)[:, None] * DIM + columns[None, :]
    query = tl.load(query_ptr + at, mask=used[:, None], other=0.0)
    table = tables_ptr + sequence * table_stride
    keys = kv_ptr + layer_offset + head // GROUP * head_stride
    best = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, DIM], tl.float32)
    stop = first + rows
    start = 0
    # Tiles of keys that every query sees need no mask: all before the first query, unless a
    # window ends there.
    clear = (first + 1) // KEYS * KEYS
    if WINDOW:
        start = tl.maximum(first - window + 1, 0) // KEYS * KEYS
        clear = start
    for base in range(start, clear, KEYS):
        acc, best, total = _prefill_step(
            query, acc, best, total, base, positions, table, keys,
            value_offset, block_stride, token_stride, scale, window, stop,
            DIM, KEYS, TOKENS, WINDOW, False, PRECISION,
        )  # fmt: skip
    for base in range(clear, stop, KEYS):
        acc, best, total = _prefill_step(
            query, acc, best, total, base, positions, table, keys,
            value_offset, block_stride, token_stride, scale, window, stop,
            DIM, KEYS, TOKENS, WINDOW, True, PRECISION,
        )  # fmt: skip
    out = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=used[:, None])


def prefill_attention(
    query: torch.Tensor,
    tiles: PrefillTiles,
    block_tables: torch.Tensor,
    kv: torch.Tensor,
    layer: int,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None,
) -> None:
    """Attend with ``query`` [T, Hq, D] at the rows of ``tiles`` and write those rows of ``out``.

    The new tokens' keys and values must be in ``kv`` already.
    """
    _, heads, dim = query.shape
    wide = query.dtype == torch.float32
    # As many keys per step as fit into shared memory with their successors.
    keys, stages = (128, 3) if dim * query.itemsize <= 256 else (32, 2)
    launch(
        _prefill_kernel, (heads, tiles.fields.shape[0]),
        query, kv, block_tables, tiles.fields, out,
        block_tables.stride(0), kv.stride(0), layer * kv.stride(1), kv.stride(2),
        kv.stride(3), kv.stride(4), scale * _LOG2E, window or 0,
        GROUP=heads // kv.shape[4], HEADS=heads, DIM=dim,
        QUERIES=_QUERIES, KEYS=keys, TOKENS=BLOCK_TOKENS,
        WINDOW=window is not None, PRECISION="ieee" if wide else "tf32",
        num_warps=8, num_stages=stages,
    )  # fmt: skip
