"""Deployments and undeployments; those of one model run one after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from aegaeon.errors import AegaeonError, ErrorReason, NotFoundError, PreconditionError
from aegaeon_scheduler.core import lifecycle
from aegaeon_scheduler.core.commands import UndeployFinished
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.state import State


class Operation(Protocol):
    """Something that takes a model from one set of replicas to another."""

    operation_id: int

    def advance(self, state: State, now_ns: int) -> bool:
        """Do what can be done now; True when the operation is over."""


@dataclass(slots=True, eq=False)
class Undeployment:
    """Drains and removes replicas of a model."""

    operation_id: int
    model: str
    node_ids: tuple[str, ...]
    _targets: list[str] | None = None
    _draining: set[str] = field(default_factory=set)
    _removed: list[str] = field(default_factory=list)
    _failed: dict[str, AegaeonError] = field(default_factory=dict)

    def advance(self, state: State, now_ns: int) -> bool:
        """See `Operation`."""
        if self._targets is None:
            present = {node.node_id for node, _ in state.replicas(self.model)}
            if not present:
                return self._finish(state, _not_deployed(self.model))
            self._targets = []
            for node_id in self.node_ids or sorted(present):
                if node_id in present:
                    self._targets.append(node_id)
                else:
                    self._failed[node_id] = _not_there(self.model, node_id)
        self._targets = [
            node_id for node_id in self._targets if not self._settled(state, node_id, now_ns)
        ]
        return not self._targets and self._finish(state, None)

    def _settled(self, state: State, node_id: str, now_ns: int) -> bool:
        node = state.nodes[node_id]
        replica = node.replicas.get(self.model)
        if replica is not None and replica.state is ReplicaState.READY:
            self._draining.add(node_id)
            lifecycle.begin_drain(state, node, replica, now_ns)
            replica = node.replicas.get(self.model)
        if replica is None:
            self._removed.append(node_id)
            return True
        if replica.state is not ReplicaState.FAILED:
            return False
        if node_id in self._draining and replica.error is not None and not replica.reload:
            self._failed[node_id] = replica.error
            return True
        for engine in node.ready_engines():
            lifecycle.ask_to_unload(state, engine, self.model)
        lifecycle.move(state, node, replica, ReplicaState.ABSENT, now_ns)
        self._removed.append(node_id)
        return True

    def _finish(self, state: State, error: AegaeonError | None) -> bool:
        state.out.add(
            UndeployFinished(
                self.operation_id,
                tuple(sorted(self._removed)),
                tuple(sorted(self._failed.items())),
                error,
            )
        )
        return True


def _not_deployed(model: str) -> AegaeonError:
    return NotFoundError(f"model {model!r} is not deployed", metadata={"model": model})


def _not_there(model: str, node_id: str) -> AegaeonError:
    return PreconditionError(
        f"model {model!r} has no replica on node {node_id!r}",
        reason=ErrorReason.TOPOLOGY_INVALID,
        metadata={"node_id": node_id},
    )
