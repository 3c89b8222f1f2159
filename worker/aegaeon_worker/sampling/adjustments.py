"""Exclusions, logit bias and penalties: sparse changes to a batch of logits."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from aegaeon_worker.device.host_link import upload
from aegaeon_worker.sampling.parameters import SamplingParameters
from aegaeon_worker.sampling.token_counts import TokenCounts


def exclude(logits: torch.Tensor, tokens: Seq[tuple[int, int]]) -> None:
    """Make pairs of row and token in ``logits`` [R, V] impossible, in place."""
    # A plain number would be copied to the device, which waits for it.
    never = upload([-torch.inf], logits.device, torch.float32)
    logits[_index(tokens, logits.device)] = never


def add_bias(logits: torch.Tensor, rows: Seq[tuple[int, SamplingParameters]]) -> None:
    """Add each row's own bias to ``logits`` [R, V] in place."""
    at = [(row, token) for row, sampling in rows for token, _ in sampling.logit_bias]
    bias = [value for _, sampling in rows for _, value in sampling.logit_bias]
    logits[_index(at, logits.device)] += upload(bias, logits.device, torch.float32)


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
    at = upload(torch.tensor([row for row, _, _ in rows]).repeat_interleave(lengths), device)
    ids = upload(torch.cat([ids for ids, _ in counted]), device)
    times = upload(torch.cat([generated for _, generated in counted]).to(torch.float32), device)
    penalties = torch.tensor(
        [
            [sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty]
            for _, sampling, _ in rows
        ],
        dtype=torch.float32,
    ).repeat_interleave(lengths, dim=0)
    repetition, frequency, presence = upload(penalties, device).unbind(1)
    values = logits[at, ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * times + presence * (times > 0)
    logits[at, ids] = values


def _index(pairs: Seq[tuple[int, int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and tokens int64 [N], as indices."""
    rows, tokens = upload(torch.tensor(pairs, dtype=torch.int64).view(-1, 2), device).unbind(1)
    return rows, tokens
