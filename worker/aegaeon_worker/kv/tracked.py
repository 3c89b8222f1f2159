"""The sequences of all models on one device, and what happens when host memory is full."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from aegaeon_worker.kv.errors import OutOfHostBlocks
from aegaeon_worker.kv.model_memory import ModelMemory
from aegaeon_worker.kv.sequence import SequenceKv


@dataclass(eq=False)
class SequenceEntry:
    """One sequence and its place in the orders of eviction."""

    sequence: int
    model: ModelMemory
    arrival: int
    """Counts up; the largest is the youngest."""
    last_planned: int = 0
    leaving: bool = False
    """It goes on at another worker, which needs its host copy."""

    @property
    def kv(self) -> SequenceKv:
        """Where its KV lies."""
        return self.model.kv[self.sequence]

    @property
    def block_nbytes(self) -> int:
        """Bytes of one of its blocks on the device."""
        return self.model.kv.shape.block_nbytes

    @property
    def host_nbytes(self) -> int:
        """Bytes of one of its blocks in the slabs."""
        return self.model.kv.shape.host_nbytes

    def ensure_capacity(self, num_tokens: int) -> None:
        """As ``KvStore.ensure_capacity``."""
        self.model.kv.ensure_capacity(self.sequence, num_tokens)

    def commit(self, num_tokens: int) -> None:
        """As ``KvStore.commit``."""
        self.model.kv.commit(self.sequence, num_tokens)


class SequenceTable:
    """Looks sequences up and swaps them out, whatever the state of the host slabs."""

    def __init__(self, tidy: Callable[[], bool]) -> None:
        """``tidy`` ends what still holds host memory without need; whether anything did."""
        self._tidy = tidy
        self._entries: dict[int, SequenceEntry] = {}
        self._arrivals = 0
        self._lost: list[int] = []

    def __getitem__(self, sequence: int) -> SequenceEntry:
        return self._entries[sequence]

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._entries

    def get(self, sequence: int) -> SequenceEntry | None:
        """The sequence, if it exists."""
        return self._entries.get(sequence)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def add(self, sequence: int, model: ModelMemory) -> None:
        """Enter a sequence as the youngest."""
        self._arrivals += 1
        self._entries[sequence] = SequenceEntry(sequence, model, self._arrivals)

    def pop(self, sequence: int) -> SequenceEntry:
        """Take a sequence off the table."""
        if sequence in self._lost:
            self._lost.remove(sequence)
        return self._entries.pop(sequence)

    def of_model(self, name: str) -> list[SequenceEntry]:
        """The sequences of one model."""
        return [entry for entry in self._entries.values() if entry.model.name == name]

    def on_device(self, spared: Set[int]) -> list[SequenceEntry]:
        """Sequences with device blocks, but not ``spared``, least recently planned first."""
        found = [
            entry
            for entry in self._entries.values()
            if entry.sequence not in spared and entry.kv.device_blocks
        ]
        return sorted(found, key=lambda entry: entry.last_planned)

    def swap_out(self, entry: SequenceEntry, spared: Set[int]) -> None:
        """Move KV to the host, at the expense of younger sequences not ``spared``, or lose it."""
        self._save(entry, spared, entry.model.kv.swap_out)

    def write_back(self, entry: SequenceEntry, spared: Set[int]) -> None:
        """As ``swap_out``, but what is saved stays on the device as well."""
        self._save(entry, spared, entry.model.kv.write_back)

    def _save(self, entry: SequenceEntry, spared: Set[int], save: Callable[[int], None]) -> None:
        sacrifices = self._sacrifices(entry, spared)
        while True:
            try:
                save(entry.sequence)
            except OutOfHostBlocks:
                if not next(sacrifices, False):
                    self._lose(entry)
                    return
            else:
                return

    def take_room(self, entry: SequenceEntry, take: Callable[[], None]) -> bool:
        """Call ``take``, which needs host blocks; whether it got them.

        Copies of what devices hold may go for that, but nobody loses the only one.
        """
        sacrifices = self._sacrifices(entry, self._entries.keys())
        while True:
            try:
                take()
            except OutOfHostBlocks:
                if not next(sacrifices, False):
                    return False
            else:
                return True

    def take_lost(self) -> list[int]:
        """Sequences that lost their KV since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def _sacrifices(self, entry: SequenceEntry, spared: Set[int]) -> Iterator[bool]:
        """Free host memory for ``entry`` step by step; each step yields true.

        Copies of blocks that the device holds cost nothing to lose. Blocks of another size help
        only once a whole slab is empty, so they come last. What is leaving is promised to others.
        """
        holders = [
            other
            for other in self._entries.values()
            if other is not entry and other.kv.host_blocks and not other.leaving
        ]
        holders.sort(key=lambda other: (other.host_nbytes != entry.host_nbytes, -other.arrival))
        if self._tidy():
            yield True
        for other in holders:
            if other.kv.device_blocks and other.kv.resident:
                other.model.kv.drop_host_copy(other.sequence)
                yield True
        for other in holders:
            younger = other.arrival > entry.arrival and other.sequence not in spared
            if younger and other.kv.host_blocks:
                self._lose(other)
                yield True

    def _lose(self, entry: SequenceEntry) -> None:
        if entry.kv.num_tokens:
            self._lost.append(entry.sequence)
        entry.model.kv.drop(entry.sequence)
