"""The first score at which weights reach a goal, per row: by narrowing, not sorting or waiting."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aegaeon_worker.kernels.launch import launch

_CHUNK = 2048
#: Places that are looked at together; each look leaves a ninth of the range.
_PLACES = 8
#: 9 ** 10 exceeds the 2 ** 31 values of a score; what remains takes a look or two.
_LOOKS = 12
#: Of -inf, which is the lowest score.
_LAST_KEY = 0x7F800000


@triton.jit  # type: ignore[untyped-decorator]
def _floors_kernel(  # type: ignore[no-untyped-def]
    scores_ptr, goal_ptr, wanted_ptr, floor_ptr, vocab, row_stride,
    LAST: tl.constexpr, CHUNK: tl.constexpr, PLACES: tl.constexpr, LOOKS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    if tl.load(wanted_ptr + row):
        scores = scores_ptr + row * row_stride
        goal = tl.load(goal_ptr + row)
        # The bits of a score's magnitude ascend as scores descend from 0.
        low = tl.full([], -1, tl.int64)
        high = tl.full([], LAST, tl.int64)
        steps = tl.arange(0, PLACES) + 1
        for _ in range(LOOKS):
            places = low + (high - low) * steps // (PLACES + 1)
            sums = tl.zeros([PLACES], tl.float64)
            for base in range(0, vocab, CHUNK):
                at = base + tl.arange(0, CHUNK)
                score = tl.load(scores + at, mask=at < vocab, other=-float("inf"))
                key = score.to(tl.int32, bitcast=True) & 0x7FFFFFFF
                below = key[:, None].to(tl.int64) <= places[None, :]
                weight = tl.exp(score)[:, None]
                sums += tl.sum(tl.where(below, weight, 0.0), 0).to(tl.float64)
            enough = sums >= goal
            high = tl.minimum(high, tl.min(tl.where(enough, places, high), 0))
            low = tl.maximum(low, tl.max(tl.where(enough, low, places), 0))
        floor = -(high.to(tl.int32).to(tl.float32, bitcast=True))
        tl.store(floor_ptr + row, floor)


def lower_floors(
    floors: torch.Tensor, scores: torch.Tensor, goals: torch.Tensor, wanted: torch.Tensor
) -> None:
    """Overwrite ``floors`` float32 [R] where ``wanted`` bool [R].

    With the highest score of the row of ``scores`` float32 [R, V], 0 being the highest of all, at
    which the exponentials of all scores from it on upwards reach ``goals`` float64 [R].
    """
    rows, vocab = scores.shape
    launch(
        _floors_kernel, (rows,),
        scores, goals, wanted, floors, vocab, scores.stride(0),
        LAST=_LAST_KEY, CHUNK=_CHUNK, PLACES=_PLACES, LOOKS=_LOOKS, num_warps=8,
    )  # fmt: skip
