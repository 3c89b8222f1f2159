"""Room on the device, made by whatever may leave it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from aegaeon_worker.device.errors import OutOfChunks
from aegaeon_worker.device.pool import DevicePool
from aegaeon_worker.kv.eviction import Evict, EvictionOrder
from aegaeon_worker.kv.model_memory import ModelMemory


class DeviceUsage(NamedTuple):
    """Bytes of the device pool by use, in whole chunks; those with nothing but kept KV are free."""

    weights: int
    kv: int
    free: int


class Room:
    """The free chunks of a pool that models share."""

    def __init__(self, pool: DevicePool, models: Mapping[str, ModelMemory]) -> None:
        self._pool = pool
        self._models = models

    @property
    def num_free(self) -> int:
        """Chunks that are free, or will be once settled."""
        return self._pool.num_free + sum(model.kv.num_leaving for model in self._models.values())

    @property
    def num_idle(self) -> int:
        """Chunks with nothing but KV that is kept though no sequence needs it."""
        return sum(model.kv.ledger.num_idle_positions for model in self._models.values())

    def usage(self) -> DeviceUsage:
        """What occupies the chunks now."""
        models = self._models.values()
        weights = sum(m.weights.num_chunks for m in models if m.weights.mapped)
        kv = sum(m.kv.num_chunks for m in models) - self.num_idle
        nbytes = self._pool.chunk_nbytes
        return DeviceUsage(weights * nbytes, kv * nbytes, (self.num_free + self.num_idle) * nbytes)

    def settle(self) -> None:
        """Make chunks that are about to be free free."""
        for model in self._models.values():
            model.kv.settle()

    def make(self, needed: int, victims: Iterator[Evict]) -> None:
        """Evict in a row, so that one wait covers all copies to the host."""
        while needed > self.num_free and (evict := next(victims, None)) is not None:
            evict()
        if needed > self._pool.num_free:
            self.settle()

    def make_for(
        self, model: ModelMemory, wants: Sequence[tuple[int, int]], victims: Iterator[Evict]
    ) -> None:
        """As ``make``, for a model's weights and the KV of all ``wants``."""
        needed, resting = model.missing_chunks(wants), model.kv.ledger.num_resting
        while needed > self.num_free and (evict := next(victims, None)) is not None:
            evict()
            if model.kv.ledger.num_resting < resting:
                # Blocks that were kept are free now, and chunks need not be.
                needed, resting = model.missing_chunks(wants), model.kv.ledger.num_resting
        self.make(needed, iter(()))

    def make_beside(self, needed: int, stamp: int, order: EvictionOrder) -> bool:
        """Free ``needed`` chunks of kept KV, and of weights last planned before ``stamp``.

        False, and nothing is evicted, if that is not enough.
        """
        idle = [m for m in self._models.values() if m.weights.mapped and m.last_planned < stamp]
        idle.sort(key=lambda model: model.last_planned)
        weights = sum(model.weights.num_chunks for model in idle)
        if needed > self.num_free + self.num_idle + weights:
            return False
        self.make(needed, chain(order.kept(), (model.weights.unload for model in idle)))
        return True

    def place(self, attempt: Callable[[], None], victims: Iterator[Evict]) -> bool:
        """Evict until ``attempt`` finds room; false if nothing is left to evict."""
        while True:
            try:
                attempt()
            except OutOfChunks as error:
                leaving = self.num_free > self._pool.num_free
                enough = leaving and error.needed <= self.num_free
                evict = None if enough else next(victims, None)
                if evict is not None:
                    evict()
                elif leaving:
                    self.settle()
                else:
                    return False
            else:
                return True
