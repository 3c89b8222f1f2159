"""Sequences that leave a worker: another one goes on with their KV, on the device or in slabs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass

from aegaeon_worker.device.interface import CopyLane, CopyMark, Device
from aegaeon_worker.kv.errors import OutOfHostBlocks
from aegaeon_worker.kv.place import NOWHERE, KvPlace
from aegaeon_worker.kv.tracked import SequenceEntry, SequenceTable
from aegaeon_worker.peers.lending import Lending, SaveOffer


@dataclass(frozen=True)
class HandedOff:
    """A sequence whose KV others may read; ``copy_ns`` until the copy was seen to be complete."""

    sequence: int
    place: KvPlace
    copy_ns: int


@dataclass(frozen=True)
class _Batch:
    """Copies that were queued together."""

    entries: list[SequenceEntry]
    start_ns: int
    mark: CopyMark


class HandOffs:
    """Copies the KV of leaving sequences out beside the steps of others, and then publishes it.

    What others can read on the device is offered to them there, and copied out only when its blocks
    are needed or when they ask for it: ``finish`` then publishes it without another word.

    From ``begin`` on, nobody's lack of host memory costs a leaving sequence its copy. Its device
    blocks go once the copy is complete, so that no step waits for it; until then they may be
    evicted like others.
    """

    def __init__(
        self,
        device: Device,
        table: SequenceTable,
        free: Callable[[int], None],
        lending: Lending | None,
    ) -> None:
        """``free`` ends a sequence; without ``lending`` all of them go by the slabs."""
        self._device = device
        self._table = table
        self._free = free
        self._lending = lending
        self._batches: deque[_Batch] = deque()
        # By the number of their offer, and those that others may not read on the device any more.
        self._offered: dict[int, SequenceEntry] = {}
        self._withdrawn: list[SequenceEntry] = []
        self._told: list[HandedOff] = []

    @property
    def under_way(self) -> bool:
        """Whether ``finish`` will have something to tell."""
        return bool(self._batches or self._withdrawn or self._told)

    def prepare(self, sequences: Iterable[int]) -> None:
        """Queue copies of sequences that will soon begin to leave, where there is room.

        They start after the compute issued so far, and not after what is issued until then.
        """
        for sequence in sequences:
            with suppress(OutOfHostBlocks):
                self._table[sequence].model.kv.write_back(sequence)

    def begin(self, sequences: Iterable[int], spared: Set[int], *, on_device: bool = False) -> None:
        """Queue the copies, at the expense of younger sequences that are not ``spared``.

        Or, ``on_device``, offer them where they are.
        """
        start_ns = time.perf_counter_ns()
        entries = []
        for sequence in sequences:
            entry = self._table[sequence]
            entry.leaving = True
            if on_device and self._lending is not None and entry.kv.num_tokens:
                self._offer(entry, self._lending)
            else:
                self._table.write_back(entry, spared)
                entries.append(entry)
        if entries:
            self._batches.append(_Batch(entries, start_ns, self._device.mark(CopyLane.KV)))

    def finish(self, *, wait: bool) -> list[HandedOff]:
        """Publish what has been copied since the last call, or wait for all of it.

        What has a place is held until it is released or freed. A sequence without KV, because the
        slabs have no room, has none and is gone.
        """
        if self._withdrawn:
            moving, self._withdrawn = self._withdrawn, []
            mark = self._device.mark(CopyLane.KV)
            self._batches.append(_Batch(moving, time.perf_counter_ns(), mark))
        if wait and self._batches:
            self._device.synchronize(CopyLane.KV)
        done, self._told = self._told, []
        while self._batches and (wait or self._batches[0].mark.done):
            batch = self._batches.popleft()
            copy_ns = time.perf_counter_ns() - batch.start_ns
            for entry in batch.entries:
                if self._table.get(entry.sequence) is not entry:
                    continue  # it has ended meanwhile
                offered = entry.kv.offered
                place = self._publish(entry)
                if offered is None:
                    done.append(HandedOff(entry.sequence, place, copy_ns))
                elif place.num_tokens:
                    offered.moved(place)
        return done

    def save(self, request: SaveOffer, spared: Set[int]) -> None:
        """Somebody cannot read an offer where it is: bring it to the slabs, as ``begin`` does."""
        entry = self._offered.get(request.number)
        if entry is None or entry.kv.offered is None:
            request.done()
            return
        entry.kv.offered.when_moved(request.done)
        if entry.kv.offered.on_device:
            self._table.swap_out(entry, spared)

    def release(self, sequences: Iterable[int]) -> None:
        """Free sequences that are held; others are ignored."""
        for sequence in sequences:
            entry = self._table.get(sequence)
            if entry is not None and (entry.kv.published or entry.kv.offered is not None):
                self._free(sequence)

    def _offer(self, entry: SequenceEntry, lending: Lending) -> None:
        """Its KV is complete: the token that follows from it is known on the host."""
        place = entry.model.kv.peer_blocks.offer(
            entry.kv, lending, lambda: self._withdrawn.append(entry)
        )
        assert entry.kv.offered is not None
        self._offered[entry.kv.offered.number] = entry
        self._told.append(HandedOff(entry.sequence, place, 0))

    def forget(self, entry: SequenceEntry) -> None:
        """A sequence has ended."""
        if entry.kv.offered is not None:
            self._offered.pop(entry.kv.offered.number, None)

    def _publish(self, entry: SequenceEntry) -> KvPlace:
        if entry.kv.num_tokens:
            with suppress(OutOfHostBlocks):
                return entry.model.kv.publish(entry.sequence)
        self._free(entry.sequence)
        return NOWHERE
