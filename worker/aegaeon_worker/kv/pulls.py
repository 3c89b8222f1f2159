"""Sequences whose KV is on its way from other workers' devices."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from aegaeon.errors import AegaeonError
from aegaeon_worker.kv.fetches import Fetched
from aegaeon_worker.kv.pull import Pull
from aegaeon_worker.kv.tracked import SequenceEntry, SequenceTable
from aegaeon_worker.peers.borrowing import Borrowing
from aegaeon_worker.peers.lender import LenderGone, PullAnswered
from aegaeon_worker.peers.offer import Offer, OfferState

logger = logging.getLogger(__name__)

_NEEDED = "the other worker needed the room"

MakeRoom = Callable[[SequenceEntry, Callable[[], None]], bool]
"""Calls its second argument, which takes device blocks, until there is room without loss to anyone;
false if there is none."""


class Pulls:
    """Copies KV into own device blocks beside the steps of others, before a turn needs it.

    The offer's file says where the KV is. Read again after the copy, it tells whether the KV was
    there all the time: only then does it count. What cannot be copied from where it is, for lack of
    room or of a way, is brought to the slabs by its worker, and copied from there in a turn.
    """

    def __init__(
        self, table: SequenceTable, borrowing: Borrowing | None, make_room: MakeRoom
    ) -> None:
        """Without ``borrowing``, what is offered is computed again."""
        self._table = table
        self._borrowing = borrowing
        self._make_room = make_room
        self._copying: deque[tuple[SequenceEntry, Pull, Offer]] = deque()
        self._outcomes: list[tuple[SequenceEntry, Fetched]] = []

    @property
    def under_way(self) -> bool:
        """Whether ``advance`` has something to do."""
        return bool(self._copying)

    def begin(self, entry: SequenceEntry) -> None:
        """Have a new sequence's KV copied, if another worker of the node offers it."""
        if entry.kv.pull is not None:
            self._look(entry, entry.kv.pull)

    def answered(self, answer: PullAnswered) -> None:
        """Another worker has lent chunks, or brought an offer to the slabs, or neither."""
        pull = answer.pull
        entry = self._table.get(pull.sequence)
        if pull.over or entry is None or entry.kv.pull is not pull:
            return
        if answer.problem and (answer.gone or pull.refusal):
            self._refuse(pull, answer.problem)
            self._conclude(entry, pull)
        elif answer.problem:
            self._save(entry, pull, answer.problem)
        else:
            self._look(entry, pull)

    def lender_gone(self, gone: LenderGone) -> None:
        """Another worker has ended: take in what was copied from it, and let go of its memory."""
        self.advance(wait=True)
        if self._borrowing is not None:
            self._borrowing.forget(gone.lender)

    def advance(self, *, wait: bool) -> None:
        """Take in what has been copied, or wait for all of it."""
        if wait and self._copying and self._borrowing is not None:
            self._borrowing.sharing.synchronize()
        while self._copying:
            entry, pull, offer = self._copying[0]
            if pull.copying and not (wait or pull.copied):
                return
            self._copying.popleft()
            if not pull.over and self._lives(entry):
                self._take_in(entry, pull, offer)

    def take_outcomes(self) -> list[Fetched]:
        """Pulls that have ended since the last call, but not those of sequences that have."""
        outcomes, self._outcomes = self._outcomes, []
        return [fetched for entry, fetched in outcomes if self._lives(entry)]

    def _look(self, entry: SequenceEntry, pull: Pull) -> None:
        """Go on according to where the KV is now."""
        borrowing = self._borrowing
        offer = None if borrowing is None else borrowing.read(pull.offer)
        if borrowing is None or offer is None:
            self._refuse(pull, "the other worker does not offer it any more")
            self._conclude(entry, pull)
        elif offer.place is not None:
            self._refuse(pull, _NEEDED)
            entry.model.kv.imports.divert(entry.sequence, entry.kv, offer.place)
            self._conclude(entry, pull)
        elif pull.refusal or offer.state is OfferState.MOVING:
            self._save(entry, pull, pull.refusal or _NEEDED)
        elif not entry.model.kv.peer_blocks.accepts(offer.content, pull.num_tokens, offer.nbytes):
            self._refuse(pull, "other weights have computed it")
            self._conclude(entry, pull)
        elif offer.device not in borrowing.sharing.readable:
            self._save(entry, pull, f"this device cannot read the memory of {offer.device}")
        else:
            self._bring(entry, pull, offer, borrowing)

    def _bring(self, entry: SequenceEntry, pull: Pull, offer: Offer, borrowing: Borrowing) -> None:
        """Copy it once its chunks are mapped here."""
        try:
            lender = borrowing.lender(pull.offer, offer)
        except (OSError, AegaeonError) as error:
            self._refuse(pull, f"the other worker does not answer: {error}")
            self._conclude(entry, pull)
            return
        if not lender.bring(pull, offer.chunks):
            return
        kv, blocks = entry.kv, entry.model.kv.peer_blocks
        if not self._make_room(entry, lambda: blocks.open(kv, pull.num_tokens)):
            self._save(entry, pull, "no room on the device")
            return
        mark = blocks.pull(kv, borrowing.sharing, lender.memory, offer.extents)
        pull.begin(borrowing.sharing, mark)
        self._copying.append((entry, pull, offer))

    def _save(self, entry: SequenceEntry, pull: Pull, reason: str) -> None:
        """Have its worker bring it to the slabs."""
        self._refuse(pull, reason)
        borrowing = self._borrowing
        offer = None if borrowing is None else borrowing.read(pull.offer)
        if borrowing is None or offer is None:
            self._conclude(entry, pull)
            return
        try:
            borrowing.lender(pull.offer, offer).save(pull)
        except (OSError, AegaeonError):
            self._conclude(entry, pull)

    def _take_in(self, entry: SequenceEntry, pull: Pull, offer: Offer) -> None:
        """A copy is complete, or was stopped."""
        assert self._borrowing is not None
        stopped = not pull.copying
        pull.end()
        if not stopped and self._borrowing.read(pull.offer) == offer:
            pull.landed = True
            entry.kv.num_tokens = pull.num_tokens
            self._conclude(entry, pull, offer.nbytes)
        else:
            entry.model.kv.drop(entry.sequence)
            self._look(entry, pull)

    def _refuse(self, pull: Pull, reason: str) -> None:
        if not pull.refusal:
            logger.warning(
                "KV of sequence %d does not come from device to device: %s", pull.sequence, reason
            )
        pull.refusal = pull.refusal or reason

    def _conclude(self, entry: SequenceEntry, pull: Pull, nbytes: int = 0) -> None:
        pull.over = True
        tokens = pull.num_tokens if pull.landed else 0
        elapsed_ns = time.perf_counter_ns() - pull.start_ns
        fetched = Fetched(entry.sequence, tokens, nbytes, elapsed_ns, 0, pull.refusal)
        self._outcomes.append((entry, fetched))

    def _lives(self, entry: SequenceEntry) -> bool:
        """Whether it has not ended; another sequence of its number may exist by now."""
        return self._table.get(entry.sequence) is entry
