"""What a rank does with its share of a vocabulary: look tokens up, and tell of its best ones."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch


@triton.jit  # type: ignore[untyped-decorator]
def _embed_kernel(  # type: ignore[no-untyped-def]
    ids_ptr, table_ptr, out_ptr, first, rows, width, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    inside = columns < width
    row = tl.load(ids_ptr + token + 0 * columns) - first
    own = (row >= 0) & (row < rows) & inside
    found = tl.load(table_ptr + row * width + columns, mask=own, other=0.0)
    tl.store(out_ptr + token * width + columns, found, mask=inside)


def embed_share(token_ids: torch.Tensor, table: torch.Tensor, first: int) -> torch.Tensor:
    """Rows of ``table`` [V, H] for ``token_ids`` [T] less ``first``; zeros for those elsewhere."""
    count, (rows, width) = token_ids.shape[0], table.shape
    out = torch.empty(count, width, dtype=table.dtype, device=table.device)
    block = min(1024, triton.next_power_of_2(width))
    launch(
        _embed_kernel, (count, triton.cdiv(width, block)),
        token_ids, table, out, first, rows, width, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _spread_kernel(  # type: ignore[no-untyped-def]
    found_ptr, out_ptr, first, rank, RANKS: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = (tl.load(found_ptr + 2 * row) + first).to(tl.float32)
    logit = tl.load(found_ptr + 2 * row + 1).to(tl.float32)
    for other in tl.static_range(RANKS):
        at = out_ptr + (row * RANKS + other) * 2
        tl.store(at, tl.where(other == rank, token, 0.0))
        tl.store(at + 1, tl.where(other == rank, logit, 0.0))


def spread_best(found: torch.Tensor, first: int, rank: int, ranks: int) -> torch.Tensor:
    """``found`` float64 [S, 2], tokens and logits of one rank, among zeros: float32 [S, 2 ranks].

    The sum over ranks then has those of all. Ids below 2^24 are exact, and so are logits.
    """
    out = torch.empty(found.shape[0], 2 * ranks, dtype=torch.float32, device=found.device)
    launch(_spread_kernel, (found.shape[0],), found, out, first, rank, RANKS=ranks, num_warps=1)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _settle_kernel(  # type: ignore[no-untyped-def]
    all_ptr, token_ptr, found_ptr, RANKS: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    at = all_ptr + row * RANKS * 2
    token, best = tl.load(at), tl.load(at + 1)
    for other in tl.static_range(1, RANKS):
        logit = tl.load(at + 2 * other + 1)
        # The lowest id among equals is that of the lowest rank.
        better = logit > best
        token = tl.where(better, tl.load(at + 2 * other), token)
        best = tl.where(better, logit, best)
    tl.store(token_ptr + row, token.to(tl.int64))
    tl.store(found_ptr + 2 * row, token.to(tl.float64))
    tl.store(found_ptr + 2 * row + 1, best.to(tl.float64))


def settle_best(every: torch.Tensor, tokens: torch.Tensor, found: torch.Tensor) -> None:
    """Write the best of ``every`` [S, 2 ranks] to ``tokens`` int64 [B] and ``found`` [S, 2]."""
    launch(
        _settle_kernel, (found.shape[0],), every, tokens, found,
        RANKS=every.shape[1] // 2, num_warps=1,
    )  # fmt: skip
