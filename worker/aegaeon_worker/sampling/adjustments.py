"""Exclusions, logit bias and penalties: sparse changes to a batch of logits."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

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


class PenalizedRow(NamedTuple):
    """What penalties of one row of logits depend on."""

    row: int
    sampling: SamplingParameters
    counts: TokenCounts
    """Of the tokens that are known."""
    source: int | None = None
    """Where among the tokens under way the newest one is, if it is not known yet."""


def penalize(
    logits: torch.Tensor, rows: Seq[PenalizedRow], under_way: torch.Tensor | None = None
) -> None:
    """Apply each row's penalties to ``logits`` [R, V] in place.

    ``repetition_penalty`` (Keskar et al., 2019) concerns all tokens counted, the other two, as
    defined by OpenAI, those of them that were generated. ``under_way`` int64 are generated tokens
    that only the device knows.
    """
    counted = [entry for entry in rows if len(entry.counts)]
    newest = [entry for entry in rows if entry.source is not None]
    if not counted and not newest:
        return
    device = logits.device
    tables = [entry.counts.tensors() for entry in counted]
    lengths = torch.tensor([len(ids) for ids, _ in tables], dtype=torch.int64)
    own = torch.tensor([entry.row for entry in counted], dtype=torch.int64)
    at = upload(own.repeat_interleave(lengths), device)
    empty = torch.empty(0, dtype=torch.int64)
    ids = upload(torch.cat([empty, *(ids for ids, _ in tables)]), device)
    times = upload(torch.cat([empty, *(times for _, times in tables)]).float(), device)
    factors = penalty_factors([entry.sampling for entry in counted])
    factors = factors.repeat_interleave(lengths, dim=1)
    if newest:
        assert under_way is not None
        places = torch.tensor([(entry.row, entry.source) for entry in newest]).t().contiguous()
        new_at, source = upload(places, device)
        at, ids, times = _with_newest(at, ids, times, len(logits), new_at, under_way[source])
        factors = torch.cat((factors, penalty_factors([e.sampling for e in newest])), dim=1)
    values = _penalized(logits[at, ids], times, *upload(factors, device))
    logits[at, ids] = values


def penalty_factors(parameters: Seq[SamplingParameters]) -> torch.Tensor:
    """Repetition, frequency and presence penalties, float32 [3, R] on the host."""
    rows = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in parameters]
    return torch.tensor(rows, dtype=torch.float32).view(-1, 3).t().contiguous()


def penalize_counted(
    logits: torch.Tensor, counts: torch.Tensor, newest: torch.Tensor, factors: torch.Tensor
) -> None:
    """Count ``newest`` int64 [R], -1 for none, in ``counts`` int32 [B, V], B >= R, and apply
    ``factors`` float32 [3, B], as of `penalty_factors`, to ``logits`` [R, V], both in place.

    A count is twice the times that a token was generated, plus 1, or 0 where it is not there.
    """
    if logits.device.type != "cpu":
        from aegaeon_worker.kernels.token_penalties import count_and_penalize

        count_and_penalize(logits, counts, newest, factors)
        return
    counts = counts[: len(logits)]
    rows = (newest >= 0).nonzero().squeeze(1)
    counts[rows, newest[rows]] = (counts[rows, newest[rows]] + 2) | 1
    at, ids = counts.nonzero(as_tuple=True)
    times = (counts[at, ids] >> 1).float()
    logits[at, ids] = _penalized(logits[at, ids], times, *factors[:, at])


def _penalized(
    values: torch.Tensor,
    times: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    values = torch.where(values > 0, values / repetition, values * repetition)
    return values - (frequency * times + presence * (times > 0))


def _with_newest(
    at: torch.Tensor,
    ids: torch.Tensor,
    times: torch.Tensor,
    num_rows: int,
    rows: torch.Tensor,
    tokens: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Count another one of ``tokens`` at ``rows``, both [N], each row once.

    One that is there already comes twice then, with the same count, so that it does not matter
    which of the two is written last.
    """
    newest = torch.full((num_rows,), -1, dtype=torch.int64, device=at.device)
    newest[rows] = tokens
    same = ids == newest[at]
    times = times + same
    there = torch.zeros(num_rows, device=at.device).index_add_(0, at, times * same)
    new = there[rows].clamp(min=1)
    return torch.cat((at, rows)), torch.cat((ids, tokens)), torch.cat((times, new))


def _index(pairs: Seq[tuple[int, int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and tokens int64 [N], as indices."""
    rows, tokens = upload(torch.tensor(pairs, dtype=torch.int64).view(-1, 2), device).unbind(1)
    return rows, tokens
