"""Logit bias and penalties: sparse changes to a batch of logits."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from aegaeon_worker.sampling.parameters import SamplingParameters
from aegaeon_worker.sampling.token_counts import TokenCounts


def add_bias(logits: torch.Tensor, rows: Seq[tuple[int, SamplingParameters]]) -> None:
    """Add each row's own bias to ``logits`` [R, V] in place."""
    at = [row for row, sampling in rows for _ in sampling.logit_bias]
    ids = [token for _, sampling in rows for token, _ in sampling.logit_bias]
    bias = [value for _, sampling in rows for _, value in sampling.logit_bias]
    device = logits.device
    index = tuple(torch.tensor(values, dtype=torch.int64, device=device) for values in (at, ids))
    logits[index] += torch.tensor(bias, dtype=torch.float32, device=device)


def penalize(logits: torch.Tensor, rows: Seq[tuple[int, SamplingParameters, TokenCounts]]) -> None:
    """Apply each row's penalties to ``logits`` [R, V] in place.

    ``repetition_penalty`` (Keskar et al., 2019) concerns all tokens counted, the other two, as
    defined by OpenAI, those of them that were generated.
    """
    rows = [entry for entry in rows if len(entry[2])]
    if not rows:
        return
    counted = [counts.tensors() for _, _, counts in rows]
    device = logits.device
    lengths = torch.tensor([len(ids) for ids, _ in counted])
    at = torch.tensor([row for row, _, _ in rows]).repeat_interleave(lengths).to(device)
    ids = torch.cat([ids for ids, _ in counted]).to(device)
    times = torch.cat([generated for _, generated in counted]).to(device, torch.float32)
    repetition, frequency, presence = (
        torch.tensor(
            [
                [sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty]
                for _, sampling, _ in rows
            ],
            dtype=torch.float32,
        )
        .repeat_interleave(lengths, dim=0)
        .to(device)
        .unbind(1)
    )
    values = logits[at, ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * times + presence * (times > 0)
    logits[at, ids] = values
