"""Draws a token per row in one launch; see `aegaeon_worker.sampling.draw`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch

# As signed numbers, which wrap alike.
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15 - (1 << 64))
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9 - (1 << 64))
_SECOND = tl.constexpr(0x94D049BB133111EB - (1 << 64))


@triton.jit
def _output(start, index):  # type: ignore[no-untyped-def]
    value = start + (index + 1) * _GOLDEN
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * _FIRST
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * _SECOND
    return value ^ ((value >> 31) & ((1 << 33) - 1))


@triton.jit
def _speeds(rates, start, indexes):  # type: ignore[no-untyped-def]
    bits = (_output(start, indexes) >> 12) & ((1 << 52) - 1)
    uniform = (bits.to(tl.float64) + 0.5) * (2.0**-52)
    return rates.to(tl.float64) / -tl.log(uniform)


@triton.jit  # type: ignore[untyped-decorator]
def _draw_kernel(  # type: ignore[no-untyped-def]
    weights_ptr, sums_ptr, seeds_ptr, positions_ptr, token_ptr, vocab, row_stride, chunks,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    start = _output(_output(tl.load(seeds_ptr + row), 0), tl.load(positions_ptr + row))
    chunk = tl.arange(0, BLOCK)
    inside = chunk < chunks
    rates = tl.load(sums_ptr + row * chunks + chunk, mask=inside, other=0.0)
    # Numbers of chunks are those before 0, so that no token shares them.
    speeds = _speeds(rates, start, -1 - chunk.to(tl.int64))
    first = tl.argmax(tl.where(inside, speeds, -1.0), 0).to(tl.int64)
    token = first * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocab
    rates = tl.load(weights_ptr + row * row_stride + token, mask=inside, other=0.0)
    speeds = tl.where(inside, _speeds(rates, start, token), -1.0)
    drawn = first * CHUNK + tl.argmax(speeds, 0)
    tl.store(token_ptr + row, tl.minimum(drawn, vocab - 1))


def draw_tokens(
    weights: torch.Tensor,
    sums: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    chunk: int,
) -> torch.Tensor:
    """Tokens int64 [R] by ``weights`` float32 [R, V], whose sums over each ``chunk`` tokens, a
    power of two, are ``sums`` float32 [R, C]; ``seeds`` and ``positions`` are int64 [R]."""
    rows, vocab = weights.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=weights.device)
    launch(
        _draw_kernel, (rows,),
        weights, sums, seeds, positions, tokens, vocab, weights.stride(0), sums.shape[1],
        CHUNK=chunk, BLOCK=triton.next_power_of_2(sums.shape[1]), num_warps=8,
    )  # fmt: skip
    return tokens
