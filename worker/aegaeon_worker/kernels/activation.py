"""SiLU of the gate times up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch

_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _silu_mul_kernel(  # type: ignore[no-untyped-def]
    gate_up_ptr, out_ptr, width, row_stride, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    at = row * row_stride + columns
    gate = tl.load(gate_up_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + at + width, mask=inside, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * width + columns, out.to(out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` [T, I] of ``gate_up`` [T, 2 I], gate first."""
    rows, both = gate_up.shape
    width = both // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(_BLOCK, triton.next_power_of_2(width))
    launch(
        _silu_mul_kernel, (rows, triton.cdiv(width, block)),
        gate_up, out, width, gate_up.stride(0), BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out
