"""The beginning of a turn: what it moved, and how long that took."""

from __future__ import annotations

import time

from aegaeon_worker.device.interface import CopyLane
from aegaeon_worker.engine.events import TurnStarted
from aegaeon_worker.engine.turn import Turn
from aegaeon_worker.kv.memory_manager import MemoryManager


class TurnStart:
    """From the end of the turn before until the copies for this one are done.

    Where copies run beside compute, steps are issued before that, and wait on the device for what
    they need. So a turn is told to have started when its copies are known to be done, and no time
    counts twice: a step that has waited for copies does not tell its own.
    """

    def __init__(self, turn: Turn, memory: MemoryManager, idle_since_ns: int) -> None:
        """To be made before anything is moved."""
        self._turn_id = turn.turn_id
        self._memory = memory
        self._began_ns = max(idle_since_ns, turn.queued_ns)
        self._before = memory.transfers

    def issued(self) -> None:
        """Everything has been queued that is to be moved."""
        self._moved = self._memory.transfers - self._before
        self._tail = self._memory.copy_tail()
        self._issued_ns = time.perf_counter_ns()

    def follow(self, ended_ns: int) -> None:
        """The turn before has lasted until then, in spite of what was queued meanwhile."""
        self._began_ns = max(self._began_ns, ended_ns)

    @property
    def is_over(self) -> bool:
        """Whether the copies are done; never blocks."""
        return self._tail.done

    def end(self) -> tuple[TurnStarted, int]:
        """What to tell, and when the copies were done; blocks until they are."""
        moved = self._moved
        weights_ns = self._tail.remaining_ns(CopyLane.WEIGHTS) if moved.weight_bytes else 0
        kv_ns = self._tail.remaining_ns(CopyLane.KV) if moved.kv_bytes else 0
        ended_ns = self._issued_ns + max(weights_ns, kv_ns)
        event = TurnStarted(
            self._turn_id,
            switched=moved.weight_bytes > 0,
            switch_time_ns=max(0, ended_ns - self._began_ns),
            weight_copy_ns=moved.weight_ns + weights_ns,
            weight_bytes=moved.weight_bytes,
            kv_swap_ns=moved.kv_ns + kv_ns,
            kv_bytes=moved.kv_bytes,
        )
        return event, ended_ns
