"""What an engine tells the scheduler of its memory and of what moves there."""

from __future__ import annotations

import time
from collections.abc import Callable

from aegaeon_worker.engine.events import Event, MemoryUsage
from aegaeon_worker.engine.model_table import ModelTable
from aegaeon_worker.engine.status import EngineStatus
from aegaeon_worker.engine.turn_queue import TurnQueue
from aegaeon_worker.kv.memory_manager import MemoryManager

#: Memory is told at least so often while a turn runs.
_MEMORY_INTERVAL_NS = 1_000_000_000


class Teller:
    """Publishes to whoever is attached; on the engine's thread, but for ``tell``."""

    def __init__(
        self,
        models: ModelTable,
        memory: MemoryManager,
        turns: TurnQueue,
        usage: Callable[[], MemoryUsage],
    ) -> None:
        self._models = models
        self._memory = memory
        self._turns = turns
        self._usage = usage
        self._publish: Callable[[Event], None] = _discard
        self._memory_told_ns = 0
        self.status = EngineStatus(usage(), (), "")
        """What was last told, for whoever asks."""

    def attach(self, publish: Callable[[Event], None] | None) -> None:
        """Publish there from now on, or nowhere."""
        self._publish = publish or _discard

    def tell(self, event: Event) -> None:
        """Publish to whoever listens by then; packers call it from their threads."""
        self._publish(event)

    def tell_handed_off(self, *, wait: bool) -> None:
        """Which sequences others may go on with by now."""
        for event in self._memory.hand_offs.finish(wait=wait):
            self._publish(event)

    def tell_pulled(self, *, wait: bool) -> None:
        """Which sequences have their KV from other devices by now."""
        if self._memory.pulls.under_way:
            self._memory.pulls.advance(wait=wait)
            self.tell_arrived()

    def tell_arrived(self) -> None:
        """What became of KV of other workers, and what was there already."""
        memory = self._memory
        for fetched in [*memory.fetches.take_outcomes(), *memory.pulls.take_outcomes()]:
            self._publish(fetched)
        for imported in self._memory.take_imports():
            self._publish(imported)
        for reused in self._memory.take_reused():
            self._publish(reused)

    def tell_memory(self) -> None:
        """What is in use now."""
        if not self._turns:  # nothing else would give back what ended sequences leave
            self._memory.tidy()
        self._memory_told_ns = time.perf_counter_ns()
        usage = self._usage()
        current = self._turns.current
        self.status = EngineStatus(usage, self._models.loaded, current.model if current else "")
        self._publish(usage)

    def tell_memory_in_time(self) -> None:
        """As `tell_memory`, unless that was less than a second ago."""
        if time.perf_counter_ns() - self._memory_told_ns > _MEMORY_INTERVAL_NS:
            self.tell_memory()


def _discard(event: Event) -> None:
    """Nobody listens."""
