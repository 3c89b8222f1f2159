"""Sums over GPUs that map each other's memory, in one kernel.

Every GPU adds its partial sums, writes the result into a place of its own in the memory of all, and
raises a flag there; then it waits for the flags of the others and adds what they have written, in
the order of ranks, so that all GPUs get the same bits. A flag is lowered by who waited for it.

Two sums in a row must use different slots. Then nobody writes to a place that is still read: that a
GPU has finished a sum means that all others have begun it, and so have finished the one before.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _shared_sum_kernel(  # type: ignore[no-untyped-def]
    parts_ptr, out_ptr, places_ptr, flags_ptr, count, part_stride, place_stride, flag_stride,
    slot, rank,
    PARTS: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    at = program * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    kind = out_ptr.dtype
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    own = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        own += tl.load(parts_ptr + part * part_stride + at, mask=inside, other=0.0).to(tl.float32)
    mine = (slot * RANKS + rank) * place_stride
    for other in tl.static_range(RANKS):
        place = tl.load(places_ptr + other).to(tl.pointer_type(kind.element_ty))
        tl.store(place + mine + at, own.to(kind.element_ty), mask=inside)
    # Every thread has written before the flags go up.
    tl.debug_barrier()
    raised = (slot * RANKS + rank) * flag_stride + program
    for other in tl.static_range(RANKS):
        if other != rank:
            flags = tl.load(flags_ptr + other).to(tl.pointer_type(tl.int32))
            tl.atomic_xchg(flags + raised, 1, sem="release", scope="sys")
    own_flags = tl.load(flags_ptr + rank).to(tl.pointer_type(tl.int32))
    for other in tl.static_range(RANKS):
        if other != rank:
            awaited = own_flags + (slot * RANKS + other) * flag_stride + program
            while tl.atomic_cas(awaited, 1, 0, sem="acquire", scope="sys") != 1:
                pass
    tl.debug_barrier()
    total = tl.zeros([BLOCK], tl.float32)
    own_place = tl.load(places_ptr + rank).to(tl.pointer_type(kind.element_ty))
    for other in tl.static_range(RANKS):
        place = own_place + (slot * RANKS + other) * place_stride
        total += tl.load(place + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    tl.store(out_ptr + at, total.to(kind.element_ty), mask=inside)


def shared_sum(
    parts: torch.Tensor,
    places: torch.Tensor,
    flags: torch.Tensor,
    *,
    place_stride: int,
    flag_stride: int,
    slot: int,
    rank: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The sum over GPUs of ``parts`` [P, T, N], contiguous: [T, N] of ``dtype``.

    ``places`` and ``flags`` int64 [ranks] are addresses in the memory of each rank; a place has
    ``place_stride`` elements, a row of flags ``flag_stride``, one per ``BLOCK`` elements.
    """
    out = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    launch(
        _shared_sum_kernel, (triton.cdiv(out.numel(), BLOCK),),
        parts, out, places, flags, out.numel(), parts.stride(0), place_stride, flag_stride,
        slot, rank, PARTS=parts.shape[0], RANKS=places.shape[0], BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return out
