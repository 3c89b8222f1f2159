"""Log-probabilities on their way from a step to the readers of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aegaeon_scheduler.core.values import FinishReason

if TYPE_CHECKING:
    from aegaeon_scheduler.core import events, sequence


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
