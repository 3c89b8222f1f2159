"""Paged contexts for tests of attention, and what attention over them must give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aegaeon_worker.kv.shape import BLOCK_TOKENS

LAYERS = 2
#: The interpreter multiplies no bfloat16.
DTYPES = [torch.float32, torch.bfloat16 if torch.cuda.is_available() else torch.float16]


@dataclass
class PagedContexts:
    """Sequences at random blocks of a KV range that is NaN wherever nothing was stored."""

    kv: torch.Tensor
    """A view with gaps: no stride follows from the shape."""
    block_tables: torch.Tensor
    keys: list[torch.Tensor]
    """Per sequence [length, Hkv, D], of the last layer."""
    values: list[torch.Tensor]

    @classmethod
    def draw(
        cls,
        lengths: Sequence[int],
        kv_heads: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> PagedContexts:
        """Contexts of ``lengths`` tokens in the last layer."""
        blocks = [-(-length // BLOCK_TOKENS) for length in lengths]
        total = sum(blocks) + 3
        shape = (total, LAYERS + 1, 2, BLOCK_TOKENS, kv_heads + 1, dim + 16)
        kv = torch.full(shape, float("nan"), dtype=dtype, device=device)
        kv = kv[:, :LAYERS, :, :, :kv_heads, :dim]
        order = (torch.randperm(total - 1) + 1).tolist()
        width = max([*blocks, 1]) + 1
        tables = torch.zeros(len(lengths), width, dtype=torch.int64, device=device)
        keys, values = [], []
        for sequence, length in enumerate(lengths):
            own = [order.pop() for _ in range(blocks[sequence])]
            tables[sequence, : len(own)] = torch.tensor(own, dtype=torch.int64)
            key, value = torch.randn(2, length, kv_heads, dim, device=device).to(dtype)
            for token in range(length):
                block, slot = own[token // BLOCK_TOKENS], token % BLOCK_TOKENS
                kv[block, LAYERS - 1, 0, slot] = key[token]
                kv[block, LAYERS - 1, 1, slot] = value[token]
            keys.append(key)
            values.append(value)
        return cls(kv, tables, keys, values)

    def attend(
        self, sequence: int, query: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """Attention of ``query`` [T, Hq, D], the last T tokens of ``sequence``, in float64."""
        key, value = self.keys[sequence].double(), self.values[sequence].double()
        length, heads = key.shape[0], query.shape[1]
        group = heads // key.shape[1]
        key, value = (part.repeat_interleave(group, 1) for part in (key, value))
        scores = torch.einsum("thd,shd->hts", query.double(), key) * scale
        at = torch.arange(length - query.shape[0], length, device=query.device)[:, None]
        seen = torch.arange(length, device=query.device)[None]
        hidden = seen > at
        if window is not None:
            hidden |= seen <= at - window
        scores = scores.masked_fill(hidden, -math.inf)
        return torch.einsum("hts,shd->thd", scores.softmax(-1), value)


def tolerance(dtype: torch.dtype) -> float:
    """What rounding of inputs of size 1 may change in a result of size 1."""
    return 1e-5 if dtype == torch.float32 else 2e-2


def assert_near(got: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    """By the norm of the difference, and no element far off; NaN never passes."""
    got, expected = got.double(), expected.double()
    error = (got - expected).norm() / expected.norm().clamp_min(1e-30)
    assert error <= bound, f"relative error {error:.3g} above {bound:.3g}"
    worst = (got - expected).abs().max().item() if got.numel() else 0.0
    assert worst <= 8 * bound * max(1.0, expected.abs().max().item()), f"an element is {worst} off"
