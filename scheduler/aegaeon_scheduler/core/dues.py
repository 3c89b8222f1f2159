"""Deadlines of sequences that wait, kept sorted so that lateness costs two look-ups."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from aegaeon_scheduler.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Dues:
    """When the next tokens of some waiting sequences are due, in ns, earliest first.

    They stay as they are for as long as the sequences wait, since none gets a token.
    """

    #: Highest priority.
    priority: int
    #: When the last permitted token of all is due.
    end_ns: int
    #: Shortest time per token that one asks for.
    tpot_ns: int
    #: Tokens of prompts that are to be computed, of sequences that have got none yet.
    prompt_tokens: int
    _times: list[int]
    #: Sums of the first weights, and of the first weight * time products.
    _weights: list[int]
    _moments: list[int]

    @classmethod
    def of(cls, sequences: Iterable[Sequence]) -> Dues:
        """Of at least one sequence."""
        held = list(sequences)
        found = sorted([(s.due_ns, s.weight) for s in held])
        return cls(
            max([s.priority for s in held]),
            max([s.end_due_ns for s in held]),
            min([s.slo.tpot_ns for s in held]),
            sum([s.prompt_ahead for s in held]),
            [due for due, _ in found],
            list(accumulate([weight for _, weight in found], initial=0)),
            list(accumulate([due * weight for due, weight in found], initial=0)),
        )

    @property
    def earliest_ns(self) -> int:
        """The first deadline."""
        return self._times[0]

    def lateness(self, at_ns: int, most_ns: int) -> int:
        """Weighted sum of how late the sequences are at ``at_ns``, each ``most_ns`` at most."""
        late = bisect_left(self._times, at_ns)
        if not late:
            return 0
        very_late = bisect_left(self._times, at_ns - most_ns, hi=late)
        weight = self._weights[late] - self._weights[very_late]
        moment = self._moments[late] - self._moments[very_late]
        return weight * at_ns - moment + self._weights[very_late] * most_ns
