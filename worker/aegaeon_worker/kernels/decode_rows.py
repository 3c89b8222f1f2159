"""The two ends of a decode step: from staged rows to inputs, from logits to tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch
from aegaeon_worker.kv.shape import BLOCK_TOKENS

_CHUNK = 4096


@dataclass(frozen=True)
class DecodeInputs:
    """What a decode step begins with, one row per sequence."""

    token_ids: torch.Tensor
    """int64 [S]"""
    positions: torch.Tensor
    """int64 [S]: -1 for padding."""
    context_lens: torch.Tensor
    """int32 [S]: position + 1."""


@triton.jit  # type: ignore[untyped-decorator]
def _inputs_kernel(  # type: ignore[no-untyped-def]
    staged_ptr, tokens_ptr, tables_ptr, ids_ptr, positions_ptr, lens_ptr, rows, table_stride,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, BLOCK)
    inside = row < rows
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    known = tl.load(staged_ptr + row, mask=inside, other=0)
    source = tl.load(staged_ptr + rows + row, mask=inside, other=-1)
    position = tl.load(staged_ptr + 2 * rows + row, mask=inside, other=-1)
    block = tl.load(staged_ptr + 3 * rows + row, mask=inside, other=0)
    before = tl.load(tokens_ptr + source, mask=source >= 0, other=0)
    tl.store(ids_ptr + row, tl.where(source >= 0, before, known), mask=inside)
    tl.store(positions_ptr + row, position, mask=inside)
    tl.store(lens_ptr + row, (position + 1).to(tl.int32), mask=inside)
    at = row * table_stride + position // TOKENS
    tl.store(tables_ptr + at, block, mask=inside & (position >= 0))


def decode_inputs(
    staged: torch.Tensor, tokens: torch.Tensor, block_tables: torch.Tensor
) -> DecodeInputs:
    """Of ``staged`` int64 [4, S], contiguous, and ``tokens`` int64 [B]; see ``DecodeRows``.

    Enters each row's block into ``block_tables`` int64 [S, B].
    """
    rows = staged.shape[1]
    inputs = DecodeInputs(
        token_ids=torch.empty(rows, dtype=torch.int64, device=staged.device),
        positions=torch.empty(rows, dtype=torch.int64, device=staged.device),
        context_lens=torch.empty(rows, dtype=torch.int32, device=staged.device),
    )
    launch(
        _inputs_kernel, (1,),
        staged, tokens, block_tables, inputs.token_ids, inputs.positions, inputs.context_lens,
        rows, block_tables.stride(0),
        TOKENS=BLOCK_TOKENS, BLOCK=triton.next_power_of_2(rows), num_warps=1,
    )  # fmt: skip
    return inputs


@triton.jit  # type: ignore[untyped-decorator]
def _chunk_kernel(  # type: ignore[no-untyped-def]
    logits_ptr, best_ptr, index_ptr, vocab, row_stride, chunks,
    CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    at = logits_ptr + row * row_stride + tokens
    logits = tl.load(at, mask=tokens < vocab, other=-float("inf"))
    # A logit that is no number must not become a token that does not exist, and must be told.
    logits = tl.where(logits == logits, logits, float("inf"))
    best, index = tl.max(logits, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(best_ptr + row * chunks + chunk, best)
    tl.store(index_ptr + row * chunks + chunk, chunk * CHUNK + index)


@triton.jit  # type: ignore[untyped-decorator]
def _best_kernel(  # type: ignore[no-untyped-def]
    best_ptr, index_ptr, token_ptr, found_ptr, chunks, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    chunk_best = tl.load(best_ptr + row * chunks + at, mask=at < chunks, other=-float("inf"))
    best, chunk = tl.max(chunk_best, 0, return_indices=True, return_indices_tie_break_left=True)
    token = tl.load(index_ptr + row * chunks + chunk).to(tl.int64)
    tl.store(token_ptr + row, token)
    tl.store(found_ptr + 2 * row, token.to(tl.float64))
    tl.store(found_ptr + 2 * row + 1, best.to(tl.float64))


def choose_best(logits: torch.Tensor, tokens: torch.Tensor, found: torch.Tensor) -> None:
    """Write the most probable token per row of ``logits`` [S, V], the lowest id among equals.

    Into ``tokens`` int64 [B], B >= S, and with its logit into ``found`` float64 [S, 2]. A logit
    that is no number counts as infinite.
    """
    rows, vocab = logits.shape
    chunks = triton.cdiv(vocab, _CHUNK)
    best = torch.empty(rows, chunks, dtype=logits.dtype, device=logits.device)
    index = torch.empty(rows, chunks, dtype=torch.int32, device=logits.device)
    launch(
        _chunk_kernel, (rows, chunks),
        logits, best, index, vocab, logits.stride(0), chunks, CHUNK=_CHUNK, num_warps=4,
    )  # fmt: skip
    launch(
        _best_kernel, (rows,),
        best, index, tokens, found, chunks, BLOCK=triton.next_power_of_2(chunks), num_warps=1,
    )  # fmt: skip
