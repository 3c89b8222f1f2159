"""Counts the newest token of every row, and applies penalties for all tokens counted."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch

_CHUNK = 2048


@triton.jit  # type: ignore[untyped-decorator]
def _penalize_kernel(  # type: ignore[no-untyped-def]
    logits_ptr, counts_ptr, newest_ptr, factors_ptr, vocab, logits_stride, counts_stride,
    factors_stride, CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocab
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    newest = tl.load(newest_ptr + row)
    counts_at = counts_ptr + row * counts_stride + token
    count = tl.load(counts_at, mask=inside, other=0)
    new = inside & (token == newest)
    count = tl.where(new, (count + 2) | 1, count)
    tl.store(counts_at, count, mask=new)
    there = inside & (count != 0)
    repetition = tl.load(factors_ptr + row)
    frequency = tl.load(factors_ptr + factors_stride + row)
    presence = tl.load(factors_ptr + 2 * factors_stride + row)
    logits_at = logits_ptr + row * logits_stride + token
    logit = tl.load(logits_at, mask=there, other=0.0)
    # Rounded as torch rounds, so that it does not matter which of the two has counted.
    divided = tl.div_rn(logit, repetition + tl.zeros_like(logit))
    logit = tl.where(logit > 0, divided, logit * repetition)
    logit -= frequency * (count >> 1).to(tl.float32) + tl.where(count > 1, presence, 0.0)
    tl.store(logits_at, logit, mask=there)


def count_and_penalize(
    logits: torch.Tensor, counts: torch.Tensor, newest: torch.Tensor, factors: torch.Tensor
) -> None:
    """See `aegaeon_worker.sampling.adjustments.penalize_counted`."""
    rows, vocab = logits.shape
    launch(
        _penalize_kernel, (rows, triton.cdiv(vocab, _CHUNK)),
        logits, counts, newest, factors, vocab, logits.stride(0), counts.stride(0),
        factors.stride(0), CHUNK=_CHUNK, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
