"""Chooses the engine of a node that takes a request."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.sequence import Sequence


class EnginePolicy(Protocol):
    """Chooses among engines that can run a sequence."""

    def choose(self, engines: Items[Engine], sequence: Sequence) -> Engine:
        """One of ``engines``, which are at least one."""


@dataclass(frozen=True, slots=True)
class FewestSequences:
    """Fewest sequences, but engines that have the model at hand may be ahead by ``slack``."""

    slack: int

    def choose(self, engines: Items[Engine], sequence: Sequence) -> Engine:
        """See `EnginePolicy`."""
        least = min(len(engine.sequences) for engine in engines)
        near = [
            engine
            for engine in engines
            if (engine.resident == sequence.model or sequence.model in engine.queues)
            and len(engine.sequences) <= least + self.slack
        ]
        pool = near or engines
        least = min(len(engine.sequences) for engine in pool)
        ties = [engine for engine in pool if len(engine.sequences) == least]
        return ties[sequence.sequence_id % len(ties)]


@dataclass(frozen=True, slots=True)
class LeastWork:
    """Least step time; a model's sequences stay together, because a batch shares its steps.

    A step costs nearly the same whatever its batch, so an engine's work is that of its models. An
    engine that runs the model already is left when its KV would no longer fit, or when it is more
    than ``slack`` sequences ahead of an idle one, whose time would be lost.
    """

    slack: int

    def choose(self, engines: Items[Engine], sequence: Sequence) -> Engine:
        """See `EnginePolicy`."""

        def work(engine: Engine) -> tuple[float, bool, int, int]:
            copies = sequence.model not in engine.on_device
            index = engine.identity.worker_index
            return engine.models_step_ns(), copies, len(engine.sequences), index

        at_hand = [e for e in engines if sequence.model in e.queues and self._fits(e, sequence)]
        if not at_hand:
            return min(engines, key=work)
        nearest = min(at_hand, key=work)
        if len(nearest.sequences) > self.slack and not all(e.queues for e in engines):
            return min(engines, key=work)
        return nearest

    @staticmethod
    def _fits(engine: Engine, sequence: Sequence) -> bool:
        queue = engine.queues[sequence.model]
        if queue.size >= engine.identity.max_batch_sequences:
            return False
        needed = sequence.pool_bytes + queue.full_kv_bytes
        return needed <= engine.identity.device.pool_bytes
