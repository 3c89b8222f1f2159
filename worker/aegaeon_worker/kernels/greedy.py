"""The most probable token of each row, fed back as the next step's input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch

_CHUNK = 4096


@dataclass(frozen=True)
class StepState:
    """What one decode step leaves for the next; all on the device, at fixed addresses."""

    token_ids: torch.Tensor
    """int64 [S]: the newest token of each sequence."""
    positions: torch.Tensor
    """int64 [S]: its position; -1 for padding."""
    context_lens: torch.Tensor
    """int32 [S]: position + 1."""
    history: torch.Tensor
    """int64 [H, S]: tokens of the last H steps, step n in row n % H."""
    step: torch.Tensor
    """int64 [1]: steps run so far."""


@triton.jit  # type: ignore[untyped-decorator]
def _chunk_kernel(  # type: ignore[no-untyped-def]
    logits_ptr, best_ptr, index_ptr, step_ptr, vocab, row_stride, chunks,
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
    # Logits that are no numbers must not become a token that does not exist.
    logits = tl.where(logits == logits, logits, -float("inf"))
    best, index = tl.max(logits, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(best_ptr + row * chunks + chunk, best)
    tl.store(index_ptr + row * chunks + chunk, chunk * CHUNK + index)
    if (row == 0) & (chunk == 0):
        tl.store(step_ptr, tl.load(step_ptr) + 1)


@triton.jit  # type: ignore[untyped-decorator]
def _advance_kernel(  # type: ignore[no-untyped-def]
    best_ptr, index_ptr, token_ptr, position_ptr, length_ptr, history_ptr, step_ptr,
    chunks, history_rows, history_stride, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    best = tl.load(best_ptr + row * chunks + at, mask=at < chunks, other=-float("inf"))
    _, chunk = tl.max(best, 0, return_indices=True, return_indices_tie_break_left=True)
    token = tl.load(index_ptr + row * chunks + chunk).to(tl.int64)
    position = tl.load(position_ptr + row)
    live = position >= 0
    tl.store(token_ptr + row, token)
    tl.store(position_ptr + row, tl.where(live, position + 1, -1))
    tl.store(length_ptr + row, tl.where(live, position + 2, 0).to(tl.int32))
    entry = (tl.load(step_ptr) - 1) % history_rows
    tl.store(history_ptr + entry * history_stride + row, token)


def advance_greedy(logits: torch.Tensor, state: StepState) -> None:
    """Choose the most probable token per row of ``logits`` [S, V], the lowest id among equals.

    Tokens, positions and context lengths become those of the next step; the tokens are also
    kept in the history. Padding stays padding.
    """
    rows, vocab = logits.shape
    chunks = triton.cdiv(vocab, _CHUNK)
    best = torch.empty(rows, chunks, dtype=logits.dtype, device=logits.device)
    index = torch.empty(rows, chunks, dtype=torch.int32, device=logits.device)
    launch(
        _chunk_kernel, (rows, chunks),
        logits, best, index, state.step, vocab, logits.stride(0), chunks,
        CHUNK=_CHUNK, num_warps=4,
    )  # fmt: skip
    launch(
        _advance_kernel, (rows,),
        best, index, state.token_ids, state.positions, state.context_lens, state.history,
        state.step, chunks, state.history.shape[0], state.history.stride(0),
        BLOCK=triton.next_power_of_2(chunks), num_warps=1,
    )  # fmt: skip
