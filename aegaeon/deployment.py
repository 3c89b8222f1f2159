"""Outcomes of deploying and undeploying, per node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from aegaeon.errors import AegaeonError

ReplicaStateName = Literal["absent", "loading", "ready", "draining", "failed"]


@dataclass(frozen=True)
class DeployProgress:
    """A step of loading on one node; both byte counts are 0 before the files are read."""

    node_id: str
    state: ReplicaStateName
    packed_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class EvictedReplica:
    """An idle model that left a node's host cache to make room."""

    node_id: str
    model: str


@dataclass(frozen=True)
class DeployOutcome:
    """Part of the nodes may have failed; at least one is ready."""

    ready: tuple[str, ...]
    #: Why, by node id.
    failed: Mapping[str, AegaeonError]
    evicted: tuple[EvictedReplica, ...]


@dataclass(frozen=True)
class UndeployOutcome:
    """Nodes that the model left, and those that it could not leave."""

    removed: tuple[str, ...]
    failed: Mapping[str, AegaeonError]
