"""Compiles the kernels of a model's steps before a request meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from functools import partial

import torch

from aegaeon_worker.engine.decode_steps import padded_sizes
from aegaeon_worker.engine.prefill_pace import StepLimits
from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.models.interface import DecodeRows, ServedModel, StepInput
from aegaeon_worker.models.native.model import NativeModel
from aegaeon_worker.sampling.adjustments import penalize_counted
from aegaeon_worker.sampling.draw import best
from aegaeon_worker.sampling.draws import Draws, drawn_tokens
from aegaeon_worker.sampling.filters import FilterKind, Filters

#: Blocks of the longest sequence of a pass. Triton compiles anew for numbers that are 1, or
#: multiples of 16.
_TABLE_WIDTHS = (1, 33, 64)
#: Whole prompts: narrow products and wide ones.
_PROMPTS = (1, 5, 16, 40, 48, 100, 512)
#: Decoding sequences beside a part of a prompt.
_BESIDE = (1, 3, 16)


def compile_steps(
    served: ServedModel, limits: StepLimits, max_batch: int, stopped: Callable[[], bool]
) -> None:
    """Run the steps of a native model over tensors without storage; see ``kernels.launch``.

    Decode steps are covered for batches of up to ``max_batch``, other passes by examples of their
    kinds: alone, and as the part of a prompt beside decoding sequences. Nothing is done for models
    of other kinds, and no more once it is ``stopped``.
    """
    outline = served.outline() if isinstance(served, NativeModel) else None
    if outline is not None:
        for step in _steps(outline, limits, max_batch):
            if stopped():
                return
            step()


def _steps(
    outline: NativeModel, limits: StepLimits, max_batch: int
) -> Iterator[Callable[[], object]]:
    """Those that a request meets first come first: prompts, sampling, steps of few sequences."""
    shape = outline.kv_shape
    kv = _meta(1, *shape.block_shape, dtype=shape.dtype)
    for query_lens in _passes(limits):
        for width in _TABLE_WIDTHS:
            yield partial(outline.forward, _pass(query_lens, width, kv))
    yield partial(_sample, outline.vocab_size, max_batch)
    step = outline.decode_step
    assert step is not None
    width = KvShape.blocks_for(outline.max_model_len)
    for size in padded_sizes(max_batch):
        rows = DecodeRows(
            staged=_meta(4, size),
            tokens=_meta(max_batch),
            found=_meta(size, 2, dtype=torch.float64),
            block_tables=_meta(size, width),
            kv=kv,
            logits=None,
        )
        yield partial(step, rows)


def _passes(limits: StepLimits) -> Iterator[tuple[int, ...]]:
    yield from ((count,) for count in _PROMPTS)
    yield (40, 60)
    yield from ((1,) * count + (limits.mixed_prefill_tokens,) for count in _BESIDE)


def _pass(query_lens: Seq[int], width: int, kv: torch.Tensor) -> StepInput:
    total, count = sum(query_lens), len(query_lens)
    return StepInput(
        token_ids=_meta(total),
        positions=_meta(total),
        query_lens=tuple(query_lens),
        context_lens=tuple(query + 16 for query in query_lens),
        block_tables=_meta(count, width),
        kv=kv,
        logit_rows=_meta(count),
    )


def _sample(vocab: int, max_batch: int) -> None:
    """Penalize and draw with every filter; the number of rows is nothing that kernels depend on."""
    rows, double = 2, torch.float64
    logits = _meta(rows, vocab, dtype=torch.float32)
    scales = _meta(5, max_batch, dtype=torch.float32)
    counts = _meta(max_batch, vocab, dtype=torch.int32)
    penalize_counted(logits, counts, _meta(rows), scales[2:])
    _, highest = best(logits)
    kind = FilterKind(cuts=True, width=1, nucleus=True)
    filters = Filters(kind, scales[1, :rows], _meta(rows), _meta(rows, dtype=double), None)
    drawn_tokens(logits, highest, Draws(scales[0, :rows], filters, _meta(rows), _meta(rows)))


def _meta(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
