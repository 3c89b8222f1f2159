"""Attention of sequences that add several tokens: a whole prompt, or a chunk of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from aegaeon_worker.kv.shape import BLOCK_TOKENS
from aegaeon_worker.models.interface import StepInput
from aegaeon_worker.models.paged.store import KvStore

#: Queries that share one mask: bounds its size, and what a window reads in vain.
_PIECE_TOKENS = 512


@dataclass(frozen=True)
class PromptPiece:
    """Consecutive new tokens of one sequence, rows ``[start, end)``, and the keys they see."""

    start: int
    end: int
    fresh: tuple[int, int] | None
    """The rows of the pass that are these keys, when none of them is older than the pass."""
    index: torch.Tensor | None
    """Else the blocks to read, as ``KvStore.read_index``."""
    skip: int
    """Tokens to drop at the front of the first block."""
    length: int
    """Keys in use."""
    mask: torch.Tensor | None
    """Additive [T, S]; None for the plain causal order."""

    def keys(
        self, store: KvStore, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [1, Hkv, S, D], from the pass's own or from the store."""
        if self.index is None:
            assert self.fresh is not None
            start, end = self.fresh
            return key[:, :, start:end], value[:, :, start:end]
        keys, values = store.read(layer, self.index, 1)
        return keys.narrow(2, self.skip, self.length), values.narrow(2, self.skip, self.length)


def prompt_pieces(
    step: StepInput, store: KvStore, window: int | None, *, masked: bool
) -> Iterator[PromptPiece]:
    """Cut the sequences of ``step`` that add several tokens into pieces.

    ``masked``: every piece needs a mask, because no causal kernel will be used.
    """
    row = 0
    for sequence, query_len in enumerate(step.query_lens):
        context_len = step.context_lens[sequence]
        if query_len > 1:
            whole = query_len == context_len and (window is None or window >= context_len)
            if whole and not masked:
                end = row + query_len
                yield PromptPiece(row, end, (row, end), None, 0, query_len, None)
            else:
                yield from _masked_pieces(step, store, window, sequence, row)
        row += query_len


def _masked_pieces(
    step: StepInput, store: KvStore, window: int | None, sequence: int, row: int
) -> Iterator[PromptPiece]:
    query_len, context_len = step.query_lens[sequence], step.context_lens[sequence]
    past = context_len - query_len
    for offset in range(0, query_len, _PIECE_TOKENS):
        length = min(_PIECE_TOKENS, query_len - offset)
        first = past + offset
        stop = first + length
        oldest = 0 if window is None else max(0, first - window + 1)
        mask = _mask(step.kv, first, stop, oldest, window)
        start, fresh, index, skip = row + offset, None, None, 0
        if oldest >= past:
            fresh = (row + oldest - past, row + stop - past)
        else:
            blocks = slice(oldest // BLOCK_TOKENS, (stop - 1) // BLOCK_TOKENS + 1)
            index = store.read_index(step.block_tables[sequence, blocks])
            skip = oldest % BLOCK_TOKENS
        yield PromptPiece(start, start + length, fresh, index, skip, stop - oldest, mask)


def _mask(
    like: torch.Tensor, first: int, stop: int, oldest: int, window: int | None
) -> torch.Tensor:
    """Additive [T, S]: queries are positions ``[first, stop)``, keys ``[oldest, stop)``."""
    queries = torch.arange(first, stop, device=like.device)[:, None]
    keys = torch.arange(oldest, stop, device=like.device)
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(hidden, float("-inf"))
