"""What a reader has not taken yet: columns with one entry per token, shared by its sequences.

A reader may have thousands of sequences. What happens per token is an append to a column;
everything else happens per step, per end or per message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aegaeon_scheduler.core.log_probabilities import ParcelLogProbabilities, PromptPiece
    from aegaeon_scheduler.core.sequence import Sequence

#: Of one step: its time at the worker, and when the core heard of it; both in ns.
Stamp = tuple[int, int]

#: Tokens and ends at which a parcel is closed, so that a message stays far below its limit, also
#: when every end comes with a long error.
_FULL_TOKENS = 65_536
_FULL_ENDS = 512
#: The same for tokens of prompts, which come with up to 20 others each.
_FULL_TOLD = 16_384


@dataclass(slots=True, eq=False)
class Parcel:
    """As much as one message carries; what is told of prompts comes first, ends come last."""

    #: One entry per token: whose it is, and what it is.
    owners: list[Sequence] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    #: One entry per step: the position of its first token, and its stamp.
    starts: list[int] = field(default_factory=list)
    stamps: list[Stamp] = field(default_factory=list)
    #: The last entry of `stamps`.
    stamp: Stamp | None = None
    #: Sequences that have ended.
    ended: list[Sequence] = field(default_factory=list)
    #: Sequences of whose prompts a part was found computed, at their present number of tokens.
    cached: list[Sequence] = field(default_factory=list)
    #: Of the tokens whose sequences ask for them, by position; None when there are none.
    log_probabilities: ParcelLogProbabilities | None = None
    #: What is told of prompts, and of how many tokens.
    prompts: list[PromptPiece] = field(default_factory=list)
    told_tokens: int = 0

    def counts(self) -> list[int]:
        """Tokens of every step."""
        return [end - start for start, end in pairwise([*self.starts, len(self.tokens)])]


@dataclass(slots=True, eq=False)
class Backlog:
    """Tokens and ends of all sequences of one reader, in the order in which they came."""

    #: What is being filled, by `steps.on_step`.
    open: Parcel = field(default_factory=Parcel)
    #: The reader has been told that there is something, and has not taken everything.
    announced: bool = False
    #: Sequences that wait for the reader, by id.
    paused: dict[int, Sequence] = field(default_factory=dict)
    _full: deque[Parcel] = field(default_factory=deque)

    def begin(self, stamp: Stamp) -> Parcel:
        """Where the tokens of a step go."""
        if len(self.open.tokens) >= _FULL_TOKENS:
            self._close()
        parcel = self.open
        parcel.starts.append(len(parcel.tokens))
        parcel.stamps.append(stamp)
        parcel.stamp = stamp
        return parcel

    def tell(self, piece: PromptPiece) -> None:
        """Log-probabilities of a part of a prompt, whose sequence has no new token yet."""
        if self.open.told_tokens >= _FULL_TOLD:
            self._close()
        self.open.prompts.append(piece)
        self.open.told_tokens += len(piece.logprobs)

    def end(self, sequence: Sequence) -> None:
        """A sequence has ended; all its tokens are in."""
        if len(self.open.ended) >= _FULL_ENDS:
            self._close()
        self.open.ended.append(sequence)

    @property
    def ends(self) -> int:
        """Ends that the reader has not taken."""
        return len(self.open.ended) + sum(len(parcel.ended) for parcel in self._full)

    def take(self) -> Parcel | None:
        """The oldest parcel, which is the reader's from now on; None when there is nothing."""
        if self._full:
            parcel = self._full.popleft()
        else:
            parcel = self.open
            self.announced = False
            if not parcel.tokens and not parcel.ended and not parcel.prompts:
                return None
            self.open = Parcel()
        for sequence in parcel.owners:
            sequence.unread -= 1
        for piece in parcel.prompts:
            piece.owner.unread -= len(piece.logprobs)
        return parcel

    def _close(self) -> None:
        self._full.append(self.open)
        self.open = Parcel()
