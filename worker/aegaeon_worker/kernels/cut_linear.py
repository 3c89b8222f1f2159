"""Products of some hundred rows with a weight that has too few rows to fill the device.

cuBLAS divides such a product by its outputs, or adds partial sums in a kernel of its own. Here the
weight is cut along its depth, and whoever reads the sums next adds them, as in ``narrow_linear``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from aegaeon_worker.kernels.launch import launch

#: Above and below, cuBLAS is as fast; the copy engines' boxes are as high.
_MORE_ROWS_THAN, MAX_ROWS = 96, 128
_OUTPUTS, _DEPTH, _PARTS = 64, 128, 2
#: With more outputs the tiles fill the device without a cut.
_MAX_OUTPUTS = 64 * _OUTPUTS


@triton.jit  # type: ignore[untyped-decorator]
def _linear_kernel(  # type: ignore[no-untyped-def]
    x_box, weight_box, bias_ptr, out_ptr, rows, outputs, part_stride, share,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, BIAS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * OUTPUTS
    part = tl.program_id(1)
    row = tl.arange(0, ROWS)
    output = first + tl.arange(0, OUTPUTS)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    acc = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for base in range(part * share, (part + 1) * share, DEPTH):
        # What lies beyond the edges is zero.
        w = weight_box.load([first, base])
        x = x_box.load([0, base])
        acc = tl.dot(x, tl.trans(w), acc)
    inside = (row < rows)[:, None] & (output < outputs)[None, :]
    if BIAS:
        if part == 0:
            acc += tl.load(bias_ptr + output, mask=output < outputs, other=0.0).to(tl.float32)[None]
    at = part.to(tl.int64) * part_stride + row.to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(out_ptr + at, acc, mask=inside)


def can_cut(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether ``cut_linear`` takes this product, and is the faster way."""
    outputs, depth = weight.shape
    return (
        _MORE_ROWS_THAN < x.shape[0] <= MAX_ROWS
        and outputs <= _MAX_OUTPUTS
        and depth % (_PARTS * _DEPTH) == 0
        and x.dtype.itemsize == 2
        and x.stride(1) == 1
        and x.stride(0) % 8 == 0  # the copy engines count in 16 bytes
    )


def cut_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x`` [M, K] by ``weight`` [N, K]: float32 partial sums [P, M, N], if ``can_cut``."""
    rows, depth = x.shape
    outputs = weight.shape[0]
    out = torch.empty(_PARTS, rows, outputs, dtype=torch.float32, device=x.device)
    launch(
        _linear_kernel, (triton.cdiv(outputs, _OUTPUTS), _PARTS),
        TensorDescriptor.from_tensor(x, [MAX_ROWS, _DEPTH]),
        TensorDescriptor.from_tensor(weight, [_OUTPUTS, _DEPTH]),
        weight if bias is None else bias, out,
        rows, outputs, out.stride(0), depth // _PARTS,
        ROWS=MAX_ROWS, OUTPUTS=_OUTPUTS, DEPTH=_DEPTH, BIAS=bias is not None,
        num_warps=4, num_stages=4,
    )  # fmt: skip
    return out
