"""RMS norm of the residual stream, fused with the addition before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm_kernel(  # type: ignore[no-untyped-def]
    delta_ptr, residual_ptr, weight_ptr, out_ptr, width, delta_part, delta_row, eps,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    at = row.to(tl.int64) * width + columns
    x = tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if PARTS > 0:
        delta_at = row.to(tl.int64) * delta_row + columns
        for part in tl.static_range(PARTS):
            x += tl.load(delta_ptr + part * delta_part + delta_at, mask=inside, other=0.0).to(
                tl.float32
            )
        rounded = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + at, rounded, mask=inside)
        x = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / width + eps)
    out = (x * scale * weight).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, out, mask=inside)


def add_norm(
    delta: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add ``delta`` to ``residual`` [T, H] in place; return its RMS norm times ``weight`` [H].

    ``delta`` is [T, H], or partial sums [P, T, H]; None adds nothing.
    """
    rows, width = residual.shape
    out = torch.empty_like(residual)
    parts, part_stride, row_stride = 0, 0, 0
    if delta is not None:
        parts = delta.shape[0] if delta.dim() == 3 else 1
        part_stride = delta.stride(0) if delta.dim() == 3 else 0
        row_stride = delta.stride(-2)
    block = triton.next_power_of_2(width)
    launch(
        _add_norm_kernel, (rows,),
        residual if delta is None else delta, residual, weight, out,
        width, part_stride, row_stride, eps,
        PARTS=parts, BLOCK=block, num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip
    return out
