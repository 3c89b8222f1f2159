"""What a model thought of the tokens of prompts, each given those before it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from aegaeon_worker.sampling.log_probabilities import Measured, measure

#: Logits that are looked at together, so that what is made of them stays small: 32 MiB.
_PIECE = 1 << 23


class ToldTokens(NamedTuple):
    """Log-probabilities of neighbouring tokens; each has ``top_count`` most probable ones beside
    it, in descending order, equals by id."""

    logprobs: list[float]
    top_count: int
    top_token_ids: list[int]
    top_logprobs: list[float]


def measure_rows(logits: torch.Tensor, tokens: torch.Tensor, count: int) -> Measured:
    """As `measure`, for float32 ``logits`` [R, V] of any number of rows."""
    rows = max(1, _PIECE // logits.shape[1])
    parts = [
        measure(logits[at : at + rows], tokens[at : at + rows], count)
        for at in range(0, len(tokens), rows)
    ]
    return Measured(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def told_tokens(measured: Measured, pieces: Seq[tuple[int, int]]) -> list[ToldTokens]:
    """What was ``measured``, on the host by now, of pieces one after another: each has its number
    of rows and how many most probable tokens it asks for."""
    own, values, ids = measured
    # Devices order equal values as they like.
    by_id = ids.argsort(1)
    values, ids = values.gather(1, by_id), ids.gather(1, by_id)
    by_value = values.sort(stable=True, dim=1, descending=True).indices
    values, ids = values.gather(1, by_value), ids.gather(1, by_value)
    told, at = [], 0
    for rows, asked in pieces:
        here, count = slice(at, at + rows), min(asked, ids.shape[1])
        told.append(
            ToldTokens(
                own[here].tolist(),
                count,
                ids[here, :count].flatten().tolist(),
                values[here, :count].flatten().tolist(),
            )
        )
        at += rows
    return told
