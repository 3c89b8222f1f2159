"""Attention of whole prompts over their own keys, by the library that is fastest at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

#: Lengths are cut to multiples of this: the library prepares itself for every length it meets.
_MULTIPLE = 256
#: Below this, in a prompt and in a pass, the paged kernel is as fast.
_MIN_TOKENS, _MIN_PASS_TOKENS = 1024, 2048
_BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True)
class DenseRun:
    """Consecutive rows of ``sequences`` prompts, each of ``tokens`` from its first on."""

    first_row: int
    sequences: int
    tokens: int

    @property
    def rows(self) -> slice:
        """Its rows of the pass."""
        return slice(self.first_row, self.first_row + self.sequences * self.tokens)


def dense_tokens(
    query_lens: Sequence[int], context_lens: Sequence[int], windows: Sequence[int | None]
) -> list[int]:
    """How many of the first new tokens of each sequence are attended here: 0 if too few."""
    lens = zip(query_lens, context_lens, strict=True)
    dense = [_dense_tokens(query_len, context_len, windows) for query_len, context_len in lens]
    return dense if sum(dense) >= _MIN_PASS_TOKENS else [0] * len(dense)


def _dense_tokens(query_len: int, context_len: int, windows: Sequence[int | None]) -> int:
    """How many need nothing but each other."""
    shortest = min((window for window in windows if window is not None), default=context_len)
    if query_len != context_len or shortest < context_len or query_len < _MIN_TOKENS:
        return 0
    return query_len // _MULTIPLE * _MULTIPLE


def plan_dense(query_lens: Sequence[int], dense: Sequence[int]) -> tuple[DenseRun, ...]:
    """The runs of a pass; ``dense`` are the tokens per sequence that they cover.

    Neighbours of one length share a run.
    """
    runs: list[DenseRun] = []
    row = 0
    for query_len, tokens in zip(query_lens, dense, strict=True):
        if tokens:
            last = runs[-1] if runs else None
            if last is not None and last.tokens == tokens and last.rows.stop == row:
                runs[-1] = DenseRun(last.first_row, last.sequences + 1, tokens)
            else:
                runs.append(DenseRun(row, 1, tokens))
        row += query_len
    return tuple(runs)


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    run: DenseRun,
    *,
    scale: float,
) -> torch.Tensor:
    """Causal attention of ``query`` [T, Hq, D] over ``key``, ``value`` [T, Hkv, D] in ``run``.

    Returns the run's rows.
    """
    q, k, v = (
        part[run.rows].view(run.sequences, run.tokens, *part.shape[1:]).transpose(1, 2)
        for part in (query, key, value)
    )
    with sdpa_kernel(_BACKENDS, set_priority=True):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    return out.transpose(1, 2).flatten(0, 1)
