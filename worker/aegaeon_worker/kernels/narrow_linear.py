"""Products of few rows with a weight: bound by reading the weight once, at memory speed.

Weights take the wide side of the matrix units and rows the narrow one. A product whose weight has
too few rows to fill the device is cut along its depth; its partial sums are added by the kernel
that reads them next, in a fixed order, so results never depend on timing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch

#: Above this many rows cuBLAS is as fast.
MAX_ROWS = 64
#: The same for ``narrow_swiglu``, if its tiles fill the device, and if they do not.
_MAX_GATED_ROWS, _MAX_FEW_GATED_ROWS = 32, 16
#: Programs that fill a large device, two to a multiprocessor.
_PROGRAMS = 256
_MAX_PARTS = 8
#: Weight rows of one program's tile.
_OUTPUTS = 64


class _Tiling(NamedTuple):
    """How a weight is divided among programs."""

    depth: int
    """Of one program's tile."""
    parts: int
    """Into how many the weight is cut along its depth."""
    stages: int
    """Tiles in flight per program."""


def _tiling(programs: int, dtype: torch.dtype) -> _Tiling:
    """Of a weight of ``programs`` tiles of rows, by what was fastest on an H200.

    Where a weight must be cut, half as many programs with twice as long lines read it faster.
    """
    parts = int(triton.next_power_of_2(triton.cdiv(_PROGRAMS, programs)))
    if dtype == torch.float32:
        return _Tiling(128, min(_MAX_PARTS, parts), 2)
    if parts > 2:
        return _Tiling(256, min(_MAX_PARTS, parts // 2), 3)
    return _Tiling(128, parts, 3)


@triton.jit  # type: ignore[untyped-decorator]
def _linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr, weight_ptr, bias_ptr, out_ptr, rows, outputs, depth, x_row, part_stride, share,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, EVEN: tl.constexpr,
    GATED: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    row = tl.arange(0, ROWS)
    inner = tl.arange(0, DEPTH)
    line = tl.arange(0, OUTPUTS)
    if GATED:
        # Half of the tile's lines are the gate's, half are up's.
        output = tl.program_id(0) * (OUTPUTS // 2) + line % (OUTPUTS // 2)
        weight = (output + line // (OUTPUTS // 2) * outputs).to(tl.int64) * depth
    else:
        output = tl.program_id(0) * OUTPUTS + line
        weight = output.to(tl.int64) * depth
    output_inside = output < outputs
    row_inside = row < rows
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    stop = tl.minimum((part + 1) * share, depth)
    for base in range(part * share, stop, DEPTH):
        at = base + inner
        weight_at = weight_ptr + weight[:, None] + at[None, :]
        x_at = x_ptr + row[:, None] * x_row + at[None, :]
        if EVEN:
            w = tl.load(weight_at)
            x = tl.load(x_at, mask=row_inside[:, None], other=0.0)
        else:
            inside = at < stop
            w = tl.load(weight_at, mask=output_inside[:, None] & inside[None, :], other=0.0)
            x = tl.load(x_at, mask=row_inside[:, None] & inside[None, :], other=0.0)
        acc = tl.dot(w, tl.trans(x), acc, input_precision=PRECISION)
    if BIAS:
        if part == 0:
            bias = tl.load(bias_ptr + output, mask=output_inside, other=0.0)
            acc += bias.to(tl.float32)[:, None]
    if GATED:
        halves = tl.permute(tl.reshape(acc, (2, OUTPUTS // 2, ROWS)), (1, 2, 0))
        gate, up = tl.split(halves)
        out = gate * tl.sigmoid(gate) * up
        column = tl.program_id(0) * (OUTPUTS // 2) + tl.arange(0, OUTPUTS // 2)
    else:
        out = acc
        column = output
    out_at = part.to(tl.int64) * part_stride + row[None, :].to(tl.int64) * outputs + column[:, None]
    tl.store(
        out_ptr + out_at, out.to(out_ptr.dtype.element_ty),
        mask=(column < outputs)[:, None] & row_inside[None, :],
    )  # fmt: skip


def narrow_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, parts: int | None = None
) -> torch.Tensor:
    """``x`` [M, K] by ``weight`` [N, K]: float32 partial sums [P, M, N]; at most ``MAX_ROWS``."""
    depth, outputs = x.shape[1], weight.shape[0]
    tiling = _tiling(triton.cdiv(outputs, _OUTPUTS), x.dtype)
    share = triton.cdiv(triton.cdiv(depth, parts or tiling.parts), tiling.depth) * tiling.depth
    cuts = triton.cdiv(depth, share)
    out = torch.empty(cuts, x.shape[0], outputs, dtype=torch.float32, device=x.device)
    _launch(x, weight, bias, out, share, tiling, gated=False)
    return out


def can_gate(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether ``narrow_swiglu`` takes this product, and is the faster way."""
    few = weight.shape[0] < _OUTPUTS * _PROGRAMS // 2
    return x.shape[0] <= (_MAX_FEW_GATED_ROWS if few else _MAX_GATED_ROWS)


def narrow_swiglu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``silu(x @ gate.T) * (x @ up.T)`` [M, I] for ``weight`` [2 I, K], gate first.

    If ``can_gate``.
    """
    rows, depth = x.shape
    out = torch.empty(1, rows, weight.shape[0] // 2, dtype=x.dtype, device=x.device)
    tiling = _tiling(_PROGRAMS, x.dtype)
    share = triton.cdiv(depth, tiling.depth) * tiling.depth
    _launch(x, weight, None, out, share, tiling, gated=True)
    return out[0]


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    share: int,
    tiling: _Tiling,
    *,
    gated: bool,
) -> None:
    rows, depth = x.shape
    outputs = out.shape[2]
    lines = _OUTPUTS // 2 if gated else _OUTPUTS
    even = outputs % lines == 0 and depth % share == 0
    launch(
        _linear_kernel, (triton.cdiv(outputs, lines), out.shape[0]),
        x, weight, weight if bias is None else bias, out,
        rows, outputs, depth, x.stride(0), out.stride(0), share,
        ROWS=max(16, triton.next_power_of_2(rows)), OUTPUTS=_OUTPUTS, DEPTH=tiling.depth,
        EVEN=even, GATED=gated, BIAS=bias is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=4, num_stages=tiling.stages,
    )  # fmt: skip
