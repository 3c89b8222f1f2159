"""What an engine says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_worker.engine.events import LoadedModel, MemoryUsage


@dataclass(frozen=True)
class EngineStatus:
    """What the engine last said of itself; replaced as a whole, so any thread may read it."""

    memory: MemoryUsage
    models: tuple[LoadedModel, ...]
    current_model: str
