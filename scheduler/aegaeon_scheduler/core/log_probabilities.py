"""Log-probabilities on their way from a step to the readers of its tokens."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aegaeon_scheduler.core.values import FinishReason

if TYPE_CHECKING:
    from aegaeon_scheduler.core import events, sequence
    from aegaeon_scheduler.core.backlog import Backlog


@dataclass(frozen=True, slots=True)
class LogProbabilities:
    """The contract's message of this name: columns beside those of some tokens."""

    indexes: Sequence[int]
    logprobs: Sequence[float]
    top_counts: Sequence[int]
    top_token_ids: Sequence[int]
    top_logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class ParcelLogProbabilities:
    """The same, growing with the tokens of a parcel."""

    indexes: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_counts: list[int] = field(default_factory=list)
    top_token_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PromptLogProbabilities:
    """The contract's message of this name, of a worker's step."""

    handles: Sequence[int]
    starts: Sequence[int]
    counts: Sequence[int]
    logprobs: Sequence[float]
    top_counts: Sequence[int]
    top_token_ids: Sequence[int]
    top_logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """Of neighbouring tokens of one prompt, from position ``start`` on: four bytes a number."""

    owner: sequence.Sequence
    start: int
    logprobs: array[float]
    top_count: int
    top_token_ids: array[int]
    top_logprobs: array[float]


def tell_prompts(
    told: PromptLogProbabilities,
    sequences: Mapping[int, sequence.Sequence],
    wake: Callable[[Backlog], None],
) -> list[sequence.Sequence]:
    """Put what a step tells of prompts where their readers find it, ahead of the step's tokens.

    Returns the sequences whose prompts they are.
    """
    owners = []
    end = top_end = 0
    for handle, start, count, top_count in zip(
        told.handles, told.starts, told.counts, told.top_counts, strict=True
    ):
        rows = slice(end, end := end + count)
        top = slice(top_end, top_end := top_end + count * top_count)
        owner = sequences.get(handle)
        if owner is None:  # it has ended meanwhile
            continue
        owners.append(owner)
        owner.told_tokens = start + count
        owner.unread += count
        owner.backlog.tell(
            PromptPiece(
                owner,
                start,
                array("f", told.logprobs[rows]),
                top_count,
                array("I", told.top_token_ids[top]),
                array("f", told.top_logprobs[top]),
            )
        )
        wake(owner.backlog)
    return owners


def hand_out(
    event: events.StepDone, told: LogProbabilities, sequences: Mapping[int, sequence.Sequence]
) -> None:
    """Put what a step tells of its tokens into the parcels that have just got these tokens.

    Called for steps that tell something, before anything else happens to the parcels.
    """
    entries = dict(zip(told.indexes, range(len(told.indexes)), strict=True))
    ends, end = [], 0
    for count in told.top_counts:
        end += count
        ends.append(end)
    #: By parcel: tokens of this step that have been passed.
    passed: dict[int, int] = {}
    for index, (handle, reason) in enumerate(zip(event.handles, event.finish_reasons, strict=True)):
        owner = sequences.get(handle)
        if owner is None or reason == FinishReason.CANCELLED:  # got no token of this step
            continue
        parcel = owner.backlog.open
        position = passed.get(id(parcel), parcel.starts[-1])
        passed[id(parcel)] = position + 1
        entry = entries.get(index)
        if entry is None:
            continue
        into = parcel.log_probabilities
        if into is None:
            into = parcel.log_probabilities = ParcelLogProbabilities()
        count = told.top_counts[entry]
        top = slice(ends[entry] - count, ends[entry])
        into.indexes.append(position)
        into.logprobs.append(told.logprobs[entry])
        into.top_counts.append(count)
        into.top_token_ids.extend(told.top_token_ids[top])
        into.top_logprobs.extend(told.top_logprobs[top])
