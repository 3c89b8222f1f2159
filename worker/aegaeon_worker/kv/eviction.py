"""What may leave the device for a turn, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial

from aegaeon_worker.kv.model_memory import ModelMemory
from aegaeon_worker.kv.tracked import SequenceEntry, SequenceTable

Evict = Callable[[], object]
"""Makes one thing leave."""


class EvictionOrder:
    """Looks at models and sequences when asked for the next victim, not before.

    Ahead of everything that is in use goes KV that is kept though no sequence needs it.
    """

    def __init__(self, models: Mapping[str, ModelMemory], table: SequenceTable) -> None:
        self._models = models
        self._table = table

    def kept(self, active: ModelMemory | None = None) -> Iterator[Evict]:
        """KV that no sequence needs: chunks with nothing else, of the least recently planned model
        first, then blocks beside others, which make room for the ``active`` model alone."""
        while models := [m for m in self._models.values() if m.kv.ledger.num_idle_positions]:
            kv = min(models, key=lambda model: model.last_planned).kv
            yield partial(kv.evict, kv.ledger.longest_idle())
        count = 1
        while active is not None and active.kv.ledger.num_resting:
            yield partial(active.kv.evict, active.kv.ledger.longest_resting(count))
            count *= 2

    def outside(
        self, active: ModelMemory, wanted: list[SequenceEntry], turn: Set[int]
    ) -> Iterator[Evict]:
        """What neither ``active`` nor its ``wanted`` sequences nor those of the turn need."""
        yield from self.kept(active)
        for evict in self._others(active, wanted, turn):
            yield evict
            # Its blocks may have been the last in use on their chunks.
            yield from self.kept(active)

    def from_the_back(
        self, active: ModelMemory, wanted: list[SequenceEntry], turn: Set[int]
    ) -> Iterator[Evict]:
        """Wanted sequences that have not found room in the turn yet, last first."""
        spared = {entry.sequence for entry in wanted} | turn
        for entry in reversed(wanted):
            if entry.kv.device_blocks and entry.sequence not in turn:
                yield partial(self._table.swap_out, entry, spared)
                yield from self.kept(active)

    def _others(
        self, active: ModelMemory, wanted: list[SequenceEntry], turn: Set[int]
    ) -> Iterator[Evict]:
        spared = {entry.sequence for entry in wanted} | turn
        others = self._table.on_device(spared)
        for entry in others:
            if entry.kv.clean and entry.kv.pull is None:
                yield partial(self._table.swap_out, entry, spared)
        rest: list[tuple[int, int, Evict]] = [
            (entry.last_planned, 0, partial(self._table.swap_out, entry, spared))
            for entry in others
            if entry.kv.device_blocks
        ]
        rest += [
            (model.last_planned, 1, model.weights.unload)
            for model in self._models.values()
            if model is not active and model.weights.mapped
        ]
        yield from (evict for _, _, evict in sorted(rest, key=lambda item: item[:2]))
