"""KV that other workers left for sequences of one model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from aegaeon_worker.kv.arrival import Arrival, Span
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.place import HostBlock, KvPlace, runs_of
from aegaeon_worker.kv.prefix_cache import PrefixCache
from aegaeon_worker.kv.pull import Pull
from aegaeon_worker.kv.regroup import Regroup
from aegaeon_worker.kv.sequence import SequenceKv
from aegaeon_worker.kv.shape import BLOCK_TOKENS, KvShape


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

    That of this node is copied to the device straight from its owner's slabs. The copy is not to be
    used before ``confirm`` has looked at its source a second time. That of other nodes comes to own
    slabs first, see ``Fetches``.
    """

    def __init__(
        self, slabs: HostSlabs, shape: KvShape, fingerprint: str, cache: PrefixCache
    ) -> None:
        """``fingerprint`` is that of the weights; ``cache`` knows who uses blocks."""
        self._slabs = slabs
        self._cache = cache
        self._shape = shape
        self._fingerprint = fingerprint
        self._content = shape.content(fingerprint)
        self._copying: list[_Copying] = []
        self._outcomes: list[Imported] = []

    def admit(self, sequence: int, kv: SequenceKv, place: KvPlace) -> None:
        """Take the place for a sequence's KV if it has the form of this model's; if not, the
        import has ended.
        """
        if place.offer and not place.address:
            kv.pull = Pull(sequence, place, time.perf_counter_ns())
            return
        source = self._shape.in_pieces(place.pieces)
        fits = (
            place.block_nbytes == self._shape.host_nbytes
            and place.num_blocks == KvShape.blocks_for(place.num_tokens)
        )
        if source is None or not fits or not (place.address or source == self._shape):
            self._outcomes.append(Imported(sequence))
        elif place.address:
            content = source.content(self._fingerprint)
            kv.arrival = Arrival(sequence, place, content, self._regroup(source))
        else:
            kv.foreign = place
            kv.num_tokens = kv.saved_tokens = place.num_tokens

    def divert(self, sequence: int, kv: SequenceKv, place: KvPlace) -> None:
        """A sequence's KV was to be pulled, and is in the node's slabs instead."""
        kv.pull = None
        self.admit(sequence, kv, place)

    def settle_pull(self, sequence: int, kv: SequenceKv) -> None:
        """A turn runs a sequence whose KV was to be pulled: this is what it has.

        Nothing is copied now, so that the outcome has no bytes.
        """
        if kv.pull is not None:
            kv.pull.stop("a turn did not wait for it")
            kv.pull.over = True
            kv.pull = None
            self._outcomes.append(Imported(sequence, kv.num_tokens))

    def open(self, kv: SequenceKv, arrival: Arrival) -> None:
        """Give an arrival blocks to come to; ``OutOfHostBlocks`` and no change if all are used."""
        nbytes = arrival.place.block_nbytes
        kv.host_blocks = self._cache.take_new_host(arrival.nbytes // nbytes)
        spans = []
        for run in runs_of((block, 0) for block in kv.host_blocks):
            first = HostBlock(run.slab, run.first_block)
            view = self._slabs.view(first, run.num_blocks, nbytes)
            spans.append(Span(view.data_ptr(), run.num_blocks * nbytes))
        arrival.open(spans)

    def keep(self, kv: SequenceKv, arrival: Arrival) -> int:
        """Make what has come of an arrival a sequence's host copy, as far as blocks are complete.

        Returns their tokens: none if its blocks have been freed meanwhile.
        """
        if arrival.closed:
            return 0
        arrival.close()
        place = arrival.place
        complete = arrival.received // place.block_nbytes
        self._cache.let_go_host(kv.host_blocks[complete:], keep=False)
        del kv.host_blocks[complete:]
        kv.num_tokens = kv.saved_tokens = min(complete * BLOCK_TOKENS, place.num_tokens)
        return kv.num_tokens

    def settle(self, sequence: int, kv: SequenceKv) -> None:
        """A turn runs a sequence whose KV was to come from another node: this is what it has."""
        nbytes = len(kv.host_blocks) * self._shape.host_nbytes
        self._outcomes.append(Imported(sequence, kv.num_tokens, nbytes))
        kv.arrival = None

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

    def _regroup(self, source: KvShape) -> Regroup | None:
        shape = self._shape
        if source == shape:
            return None
        return Regroup(shape.host_nbytes, shape.rows, source.pieces, shape.pieces)

    def forget(self, sequence: int) -> None:
        """The sequence has ended: nobody asks any more."""
        self._copying = [copy for copy in self._copying if copy.sequence != sequence]
        self._outcomes = [outcome for outcome in self._outcomes if outcome.sequence != sequence]

    def take_outcomes(self) -> list[Imported]:
        """Imports that have ended since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes
