"""KV that is copied to the host before it has to leave the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from aegaeon_worker.device.interface import CopyLane, CopyMark, Device
from aegaeon_worker.kv.errors import OutOfHostBlocks
from aegaeon_worker.kv.model_memory import ModelMemory
from aegaeon_worker.kv.room import Room
from aegaeon_worker.kv.tracked import SequenceEntry, SequenceTable

#: Sequences that go on change a block or two until they leave; copying those again would not pay.
_MIN_BLOCKS = 4


class WriteBacks:
    """Copies beside the steps of a turn what the next turn would have to wait for.

    One sequence at a time, and only into room that is there: nobody loses anything for it.
    """

    def __init__(
        self, device: Device, table: SequenceTable, models: Mapping[str, ModelMemory], room: Room
    ) -> None:
        self._device = device
        self._table = table
        self._models = models
        self._room = room
        self._mark: CopyMark | None = None

    def advance(self, name: str, wants: Iterable[tuple[int, int]]) -> None:
        """Begin the next copy for a turn of model ``name``, unless one is under way.

        ``wants`` are the turn's sequences with the tokens that they need room for. A model or
        sequence that is not there is ignored.
        """
        model = self._models.get(name)
        if model is None or (self._mark is not None and not self._mark.done):
            return
        entry = self._next(model, wants)
        if entry is not None:
            with suppress(OutOfHostBlocks):
                entry.model.kv.write_back(entry.sequence)
                self._mark = self._device.mark(CopyLane.KV)

    def _next(self, model: ModelMemory, wants: Iterable[tuple[int, int]]) -> SequenceEntry | None:
        """The first sequence to leave that the host has no copy of, if any has to leave."""
        wanted = {sequence: tokens for sequence, tokens in wants if sequence in self._table}
        pool = self._device.pool
        missing = 0 if model.weights.mapped else model.weights.num_chunks * pool.chunk_nbytes
        for sequence, tokens in wanted.items():
            entry = self._table[sequence]
            missing += entry.kv.missing_blocks(tokens) * entry.block_nbytes
        missing -= (self._room.num_free + self._room.num_idle) * pool.chunk_nbytes
        for entry in self._table.on_device(wanted.keys()):
            if missing <= 0:
                break
            if len(entry.kv.dirty_blocks()) >= _MIN_BLOCKS:
                return entry
            missing -= len(entry.kv.device_blocks) * entry.block_nbytes
        return None
