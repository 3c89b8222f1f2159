"""Attention of sequences that add one token each: one batch, padded to its longest context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from aegaeon_worker.kv.shape import BLOCK_TOKENS
from aegaeon_worker.models.interface import StepInput
from aegaeon_worker.models.paged.store import KvStore

#: Blocks of padding that one batch may read before a second batch is cheaper.
_MAX_PADDING_BLOCKS = 64


class DecodeBatch:
    """Sequences with one new token and similar context lengths, and where their keys lie."""

    def __init__(
        self, step: StepInput, store: KvStore, sequences: Sequence[int], window: int | None
    ) -> None:
        device = step.block_tables.device
        self._store = store
        self._sequences = len(sequences)
        rows = _rows(step.query_lens)
        everything = len(sequences) == step.positions.shape[0]
        self.rows = (
            None if everything else torch.tensor([rows[s] for s in sequences], device=device)
        )
        lens = torch.tensor([step.context_lens[s] for s in sequences], device=device)[:, None]
        oldest = torch.zeros_like(lens) if window is None else (lens - window).clamp_min(0)
        first = oldest // BLOCK_TOKENS
        last = (lens - 1) // BLOCK_TOKENS
        width = int((last - first).max()) + 1
        columns = first + torch.arange(width, device=device)
        # Padding reads the sequence's own last block again: no other block need be mapped.
        tables = step.block_tables[torch.tensor(sequences, device=device)]
        self._index = store.read_index(tables.gather(1, torch.minimum(columns, last)))
        tokens = first * BLOCK_TOKENS + torch.arange(width * BLOCK_TOKENS, device=device)
        hidden = (tokens < oldest) | (tokens >= lens)
        mask = torch.zeros(hidden.shape, dtype=step.kv.dtype, device=device)
        self.mask = mask.masked_fill_(hidden, float("-inf"))[:, None, None, :]

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of ``layer``, each [S, Hkv, padded context, D]."""
        return self._store.read(layer, self._index, self._sequences)


def decode_batches(step: StepInput, store: KvStore, window: int | None) -> Iterator[DecodeBatch]:
    """Group the sequences of ``step`` that add one token so that little padding is read."""

    def blocks(sequence: int) -> int:
        context = step.context_lens[sequence]
        oldest = 0 if window is None else max(0, context - window)
        return (context - 1) // BLOCK_TOKENS - oldest // BLOCK_TOKENS + 1

    sequences = [s for s, query_len in enumerate(step.query_lens) if query_len == 1]
    sizes = {sequence: blocks(sequence) for sequence in sequences}
    if not sequences:
        return
    longest = max(sizes.values())
    if sum(longest - size for size in sizes.values()) <= _MAX_PADDING_BLOCKS:
        yield DecodeBatch(step, store, sequences, window)
        return
    batch: list[int] = []
    padding = longest = 0
    for sequence in sorted(sequences, key=sizes.__getitem__, reverse=True):
        padding += longest - sizes[sequence]
        if batch and padding > _MAX_PADDING_BLOCKS:
            yield DecodeBatch(step, store, batch, window)
            batch = []
        if not batch:
            padding, longest = 0, sizes[sequence]
        batch.append(sequence)
    yield DecodeBatch(step, store, batch, window)


def _rows(query_lens: Sequence[int]) -> list[int]:
    """The first row of each sequence."""
    rows, row = [], 0
    for query_len in query_lens:
        rows.append(row)
        row += query_len
    return rows
