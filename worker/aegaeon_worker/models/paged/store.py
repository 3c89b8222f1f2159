"""The KV range as rows that one index operation reads or writes."""

from __future__ import annotations

import torch

from aegaeon_worker.kv.shape import BLOCK_TOKENS
from aegaeon_worker.models.interface import StepInput


class KvStore:
    """Reads and writes of one pass; every index is computed once, for all layers."""

    def __init__(self, step: StepInput) -> None:
        self._step = step
        _, self.num_layers, _, _, self.num_kv_heads, self.head_dim = step.kv.shape
        width = self.num_kv_heads * self.head_dim
        self._token_rows = step.kv.view(-1, width)
        self._block_rows = step.kv.view(-1, BLOCK_TOKENS * width)
        self._key_slots, self._value_slots = self._write_slots()
        self._clear_new_blocks()

    def _write_slots(self) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Per layer, the token rows [T] of the new keys, and of the new values."""
        step, device = self._step, self._step.positions.device
        sequences = torch.arange(len(step.query_lens), device=device)
        if len(step.query_lens) != step.positions.shape[0]:
            lens = torch.tensor(step.query_lens, device=device)
            sequences = torch.repeat_interleave(sequences, lens)
        blocks = step.block_tables[sequences, step.positions // BLOCK_TOKENS]
        first = blocks * (self.num_layers * 2 * BLOCK_TOKENS) + step.positions % BLOCK_TOKENS
        layers = torch.arange(self.num_layers, device=device) * (2 * BLOCK_TOKENS)
        slots = first + layers[:, None]
        return slots.unbind(0), (slots + BLOCK_TOKENS).unbind(0)

    def _clear_new_blocks(self) -> None:
        """Zero the blocks that this pass begins but does not fill.

        A block may hold another model's bytes. Masked tokens have weight 0, and 0 x NaN is NaN, so
        whatever is read beside a sequence's own tokens must be finite.
        """
        rows, columns = [], []
        lens = zip(self._step.query_lens, self._step.context_lens, strict=True)
        for sequence, (query_len, context_len) in enumerate(lens):
            if 0 < context_len % BLOCK_TOKENS <= query_len:
                rows.append(sequence)
                columns.append(context_len // BLOCK_TOKENS)
        if rows:
            self._step.kv.index_fill_(0, self._step.block_tables[rows, columns], 0)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the new ``key``, ``value`` [1, Hkv, T, D] of ``layer``."""
        width = self._token_rows.shape[1]
        self._token_rows.index_copy_(
            0, self._key_slots[layer], key[0].transpose(0, 1).reshape(-1, width)
        )
        self._token_rows.index_copy_(
            0, self._value_slots[layer], value[0].transpose(0, 1).reshape(-1, width)
        )

    def read_index(self, blocks: torch.Tensor) -> torch.Tensor:
        """What ``read`` takes to read ``blocks`` [S, B]."""
        keys = blocks.flatten() * (self.num_layers * 2)
        return torch.cat([keys, keys + 1])

    def read(
        self, layer: int, index: torch.Tensor, sequences: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of ``layer`` in the indexed blocks: [S, Hkv, B * BLOCK_TOKENS, D]."""
        rows = self._block_rows.index_select(0, index + 2 * layer)
        both = rows.view(2, sequences, -1, self.num_kv_heads, self.head_dim).transpose(2, 3)
        return both[0], both[1]
