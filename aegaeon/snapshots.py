"""What `LLMService` tells about routing and placement; counters are since start or reset."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeRouting:
    """Requests of one node."""

    #: Routed to it.
    routed: int
    #: Of those that were ever routed to it, not ended now.
    outstanding: int


@dataclass(frozen=True)
class NodePlacement:
    """Replicas of one node."""

    placed: int
    evicted: int
    #: Names of the models that are READY on it now.
    ready_models: tuple[str, ...]
