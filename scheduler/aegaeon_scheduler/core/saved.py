"""What a scheduler needs to know of an earlier one: topology, policies, deployed models."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_scheduler.core.values import (
    DeviceFacts,
    ModelFacts,
    ModelSpec,
    PlacementPolicy,
    RoutingPolicy,
)


@dataclass(frozen=True, slots=True)
class SavedTopology:
    """What a client has declared; see `events.TopologyApplied`."""

    node_ids: tuple[str, ...]
    placement: PlacementPolicy
    routing: RoutingPolicy
    stealing_min_batch_gap: int


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A deployed model. Facts and the largest device that served it are unknown before it was
    ready."""

    spec: ModelSpec
    facts: ModelFacts | None
    device: DeviceFacts | None
    node_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SavedCluster:
    """Everything that outlives the scheduler and that workers do not report by themselves."""

    #: None while no client has declared any.
    topology: SavedTopology | None = None
    models: tuple[SavedModel, ...] = ()
