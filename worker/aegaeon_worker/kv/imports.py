"""KV that other workers of the node left for sequences of one model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.shape import KvShape


@dataclass(frozen=True)
class Imported:
    """How an import went; ``num_tokens`` is 0 if the KV was not there, and is computed again."""

    sequence: int
    num_tokens: int = 0
    nbytes: int = 0
    copy_ns: int = 0


@dataclass(frozen=True)
class _Copying:
    sequence: int
    place: KvPlace
    queue_ns: int


class Imports:
    """Checks foreign KV before and after it is copied, and remembers what came of it.

    A copy is not to be used before ``confirm`` has looked at its source a second time.
    """

    def __init__(self, slabs: HostSlabs, shape: KvShape, content: int) -> None:
        """``content`` is what the owners published the KV as."""
        self._slabs = slabs
        self._shape = shape
        self._content = content
        self._copying: list[_Copying] = []
        self._outcomes: list[Imported] = []

    def admit(self, sequence: int, place: KvPlace) -> bool:
        """Whether the place has the form of this model's KV; if not, the import has ended."""
        num_blocks = sum(run.num_blocks for run in place.runs)
        fits = place.block_nbytes == self._shape.block_nbytes and num_blocks == KvShape.blocks_for(
            place.num_tokens
        )
        if not fits:
            self._outcomes.append(Imported(sequence))
        return fits

    def copy(self, sequence: int, place: KvPlace, queue: Callable[[], None]) -> bool:
        """Call ``queue`` if the KV is still there; if not, the import has ended."""
        start_ns = time.perf_counter_ns()
        if not self._slabs.holds(place, self._content):
            self._outcomes.append(Imported(sequence))
            return False
        queue()
        self._copying.append(_Copying(sequence, place, time.perf_counter_ns() - start_ns))
        return True

    def confirm(self, synchronize: Callable[[], None]) -> list[int]:
        """End the copies under way; return the sequences whose source changed meanwhile."""
        if not self._copying:
            return []
        copying, self._copying = self._copying, []
        start_ns = time.perf_counter_ns()
        synchronize()
        wait_ns = time.perf_counter_ns() - start_ns
        spoilt = []
        all_tokens = sum(copy.place.num_tokens for copy in copying)
        for copy in copying:
            place = copy.place
            if self._slabs.holds(place, self._content):
                nbytes = KvShape.blocks_for(place.num_tokens) * place.block_nbytes
                # They were waited for together: each has its share by size.
                copy_ns = copy.queue_ns + wait_ns * place.num_tokens // all_tokens
                self._outcomes.append(Imported(copy.sequence, place.num_tokens, nbytes, copy_ns))
            else:
                self._outcomes.append(Imported(copy.sequence))
                spoilt.append(copy.sequence)
        return spoilt

    def forget(self, sequence: int) -> None:
        """The sequence has ended: nobody asks any more."""
        self._copying = [copy for copy in self._copying if copy.sequence != sequence]
        self._outcomes = [outcome for outcome in self._outcomes if outcome.sequence != sequence]

    def take_outcomes(self) -> list[Imported]:
        """Imports that have ended since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes
