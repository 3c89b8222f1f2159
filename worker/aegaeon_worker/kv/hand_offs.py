"""Sequences that leave a worker: their KV goes to host slabs, for another worker to go on with."""

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

    From ``begin`` on, nobody's lack of host memory costs a leaving sequence its copy. Its device
    blocks go once the copy is complete, so that no step waits for it; until then they may be
    evicted like others.
    """

    def __init__(self, device: Device, table: SequenceTable, free: Callable[[int], None]) -> None:
        """``free`` ends a sequence."""
        self._device = device
        self._table = table
        self._free = free
        self._batches: deque[_Batch] = deque()

    @property
    def under_way(self) -> bool:
        """Whether ``finish`` will have something to tell."""
        return bool(self._batches)

    def prepare(self, sequences: Iterable[int]) -> None:
        """Queue copies of sequences that will soon begin to leave, where there is room.

        They start after the compute issued so far, and not after what is issued until then.
        """
        for sequence in sequences:
            with suppress(OutOfHostBlocks):
                self._table[sequence].model.kv.write_back(sequence)

    def begin(self, sequences: Iterable[int], spared: Set[int]) -> None:
        """Queue the copies, at the expense of younger sequences that are not ``spared``."""
        start_ns = time.perf_counter_ns()
        entries = [self._table[sequence] for sequence in sequences]
        for entry in entries:
            entry.leaving = True
            self._table.write_back(entry, spared)
        if entries:
            self._batches.append(_Batch(entries, start_ns, self._device.mark(CopyLane.KV)))

    def finish(self, *, wait: bool) -> list[HandedOff]:
        """Publish what has been copied since the last call, or wait for all of it.

        What has a place is held until it is released or freed. A sequence without KV, because the
        slabs have no room, has none and is gone.
        """
        if wait and self._batches:
            self._device.synchronize(CopyLane.KV)
        done = []
        while self._batches and (wait or self._batches[0].mark.done):
            batch = self._batches.popleft()
            copy_ns = time.perf_counter_ns() - batch.start_ns
            done += [
                HandedOff(entry.sequence, self._publish(entry), copy_ns)
                for entry in batch.entries
                if self._table.get(entry.sequence) is entry  # or it has ended meanwhile
            ]
        return done

    def release(self, sequences: Iterable[int]) -> None:
        """Free sequences that are held; others are ignored."""
        for sequence in sequences:
            entry = self._table.get(sequence)
            if entry is not None and entry.kv.published:
                self._free(sequence)

    def _publish(self, entry: SequenceEntry) -> KvPlace:
        if entry.kv.num_tokens:
            with suppress(OutOfHostBlocks):
                return entry.model.kv.publish(entry.sequence)
        self._free(entry.sequence)
        return NOWHERE
