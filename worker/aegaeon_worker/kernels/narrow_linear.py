"""Products of few rows with a weight: bound by reading the weight once, at memory speed.

Weights take the wide side of the matrix units and rows the narrow one. A product whose weight has
too few rows to fill the device is cut along its depth; its partial sums are added by the kernel
that reads them next, in a fixed order, so results never depend on timing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch

#: Above this many rows cuBLAS is as fast.
MAX_ROWS = 64
#: The same for the two products at once of ``narrow_swiglu``.
MAX_SWIGLU_ROWS = 16
#: Programs that fill a large device, two to a multiprocessor.
_PROGRAMS = 256
_MAX_PARTS = 8
#: Weight rows and depth of one program's tile.
_OUTPUTS, _DEPTH = 64, 128


def _parts(programs: int) -> int:
    """Into how many parts a weight of ``programs`` tiles is cut along its depth."""
    wanted = triton.cdiv(_PROGRAMS, programs)
    return int(min(_MAX_PARTS, triton.next_power_of_2(wanted)))


def _stages(programs: int, cuts: int, dtype: torch.dtype) -> int:
    """Tiles in flight per program, as many as leave room for all programs at once.

    A weight that is not cut fills the device many times over, and in float32 tiles are twice as
    large.
    """
    if dtype == torch.float32:
        return 2
    return 4 if cuts == 1 or programs * cuts <= _PROGRAMS else 3


@triton.jit  # type: ignore[untyped-decorator]
def _linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr, weight_ptr, bias_ptr, out_ptr, rows, outputs, depth, x_row, part_stride, share,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    part = tl.program_id(1)
    row = tl.arange(0, ROWS)
    inner = tl.arange(0, DEPTH)
    output_inside = output < outputs
    row_inside = row < rows
    weight = weight_ptr + output.to(tl.int64)[:, None] * depth
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    stop = tl.minimum((part + 1) * share, depth)
    for base in range(part * share, stop, DEPTH):
        at = base + inner
        inside = at < stop
        w = tl.load(weight + at[None, :], mask=output_inside[:, None] & inside[None, :], other=0.0)
        x = tl.load(
            x_ptr + row[:, None] * x_row + at[None, :],
            mask=row_inside[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        acc = tl.dot(w, tl.trans(x), acc, input_precision=PRECISION)
    if BIAS:
        if part == 0:
            bias = tl.load(bias_ptr + output, mask=output_inside, other=0.0)
            acc += bias.to(tl.float32)[:, None]
    out_at = part.to(tl.int64) * part_stride + row[None, :].to(tl.int64) * outputs + output[:, None]
    tl.store(out_ptr + out_at, acc, mask=output_inside[:, None] & row_inside[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _swiglu_kernel(  # type: ignore[no-untyped-def]
    x_ptr, weight_ptr, out_ptr, rows, outputs, depth, x_row,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    inner = tl.arange(0, DEPTH)
    output_inside = output < outputs
    row_inside = row < rows
    gate_weight = weight_ptr + output.to(tl.int64)[:, None] * depth
    up_weight = gate_weight + tl.cast(outputs, tl.int64) * depth
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    gate = tl.zeros([OUTPUTS, ROWS], tl.float32)
    up = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for base in range(0, depth, DEPTH):
        at = base + inner
        inside = at < depth
        mask = output_inside[:, None] & inside[None, :]
        gate_w = tl.load(gate_weight + at[None, :], mask=mask, other=0.0)
        up_w = tl.load(up_weight + at[None, :], mask=mask, other=0.0)
        x = tl.load(
            x_ptr + row[:, None] * x_row + at[None, :],
            mask=row_inside[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        gate = tl.dot(gate_w, tl.trans(x), gate, input_precision=PRECISION)
        up = tl.dot(up_w, tl.trans(x), up, input_precision=PRECISION)
    out = gate * tl.sigmoid(gate) * up
    out_at = row[None, :].to(tl.int64) * outputs + output[:, None]
    tl.store(
        out_ptr + out_at, out.to(out_ptr.dtype.element_ty),
        mask=output_inside[:, None] & row_inside[None, :],
    )  # fmt: skip


def narrow_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, parts: int | None = None
) -> torch.Tensor:
    """``x`` [M, K] by ``weight`` [N, K]: float32 partial sums [P, M, N]; at most ``MAX_ROWS``."""
    rows, depth = x.shape
    outputs = weight.shape[0]
    programs = triton.cdiv(outputs, _OUTPUTS)
    share = triton.cdiv(triton.cdiv(depth, parts or _parts(programs)), _DEPTH) * _DEPTH
    cuts = triton.cdiv(depth, share)
    out = torch.empty(cuts, rows, outputs, dtype=torch.float32, device=x.device)
    launch(
        _linear_kernel, (programs, cuts),
        x, weight, weight if bias is None else bias, out,
        rows, outputs, depth, x.stride(0), out.stride(0), share,
        ROWS=max(16, triton.next_power_of_2(rows)), OUTPUTS=_OUTPUTS, DEPTH=_DEPTH,
        BIAS=bias is not None, PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=4, num_stages=_stages(programs, cuts, x.dtype),
    )  # fmt: skip
    return out


def narrow_swiglu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``silu(x @ gate.T) * (x @ up.T)`` [M, I] for ``weight`` [2 I, K], gate first.

    At most ``MAX_SWIGLU_ROWS``.
    """
    rows, depth = x.shape
    outputs = weight.shape[0] // 2
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    # Half of the tile's weight rows are the gate's, half are up's.
    programs = triton.cdiv(outputs, _OUTPUTS // 2)
    launch(
        _swiglu_kernel, (programs,),
        x, weight, out, rows, outputs, depth, x.stride(0),
        ROWS=max(16, triton.next_power_of_2(rows)), OUTPUTS=_OUTPUTS // 2, DEPTH=_DEPTH,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=4, num_stages=_stages(programs, 1, x.dtype),
    )  # fmt: skip
    return out
