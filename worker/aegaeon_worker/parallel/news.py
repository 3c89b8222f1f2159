"""What rank 0's engine hears from beside the scheduler's stream."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon.errors import EngineError
from aegaeon_worker.engine.model_table import Prepared
from aegaeon_worker.parallel.meeting import Assembled


@dataclass(frozen=True)
class Lost:
    """A group cannot go on."""

    generation: int
    reason: str


@dataclass(frozen=True)
class PreparedHere:
    """Rank 0 has packed a model for all ranks, or failed to."""

    generation: int
    prepared: Prepared


@dataclass(frozen=True)
class PreparedThere:
    """Another rank has opened a model, or failed to."""

    generation: int
    rank: int
    model: str
    error: EngineError | None


News = Assembled | Lost | PreparedHere | PreparedThere
