"""A node: the host memory of one machine, its engines and its replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aegaeon.capability import NO_CAPABILITIES, Capabilities
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.follower import Follower
from aegaeon_scheduler.core.replica import Replica, ReplicaState
from aegaeon_scheduler.core.values import EngineRole, NodeMemory

_HOLDS_MEMORY = frozenset({ReplicaState.LOADING, ReplicaState.READY, ReplicaState.DRAINING})


@dataclass(slots=True, eq=False)
class Node:
    """One machine; it stays known when its workers are lost."""

    node_id: str
    memory: NodeMemory
    #: Unfinished requests routed here, over all replicas.
    active_requests: int = 0
    #: Engines by the worker index of their rank 0, once that has registered.
    engines: dict[int, Engine] = field(default_factory=dict)
    #: Registered workers of other ranks, by index.
    followers: dict[int, Follower] = field(default_factory=dict)
    #: Workers per engine, each of which has packed weights of its own.
    ranks: int = 1
    #: Replicas that are not ABSENT, by model.
    replicas: dict[str, Replica] = field(default_factory=dict)
    #: Packed bytes that deployments have set aside until evicted models are gone, by model.
    reserved: dict[str, int] = field(default_factory=dict)
    #: Models that leave for a reservation.
    evicting: set[str] = field(default_factory=set)
    #: Models removed here while a worker was away, which may come back with them.
    unwanted: set[str] = field(default_factory=set)

    def ready_engines(self) -> list[Engine]:
        """Engines whose command stream is open, by index."""
        return [engine for _, engine in sorted(self.engines.items()) if engine.ready]

    def lasting_engines(self) -> list[Engine]:
        """Of those, the ones that are not to be stopped."""
        return [engine for engine in self.ready_engines() if not engine.draining]

    def engines_with(self, model: str) -> Iterator[Engine]:
        """Engines that can run a model, by index."""
        return (e for e in self.ready_engines() if model in e.loaded and model not in e.unloading)

    def engines_for(
        self, model: str, stage: EngineRole, needs: Capabilities = NO_CAPABILITIES
    ) -> list[Engine]:
        """Engines that take a model's sequences to PREFILL or DECODE and know what these need, by
        index; none that is to be stopped.

        Where no such engine for the stage has the model, those for the other one do both.
        """
        loaded = [e for e in self.engines_with(model) if not e.draining and e.knows(needs)]
        own = [engine for engine in loaded if engine.role in (EngineRole.SIMPLE, stage)]
        return own or loaded

    def decoders(self, model: str, needs: Capabilities = NO_CAPABILITIES) -> list[Engine]:
        """Engines that are meant to decode, and to stay, and can run sequences of a model that need
        this, by index."""
        return [
            engine
            for engine in self.engines_with(model)
            if engine.role is not EngineRole.PREFILL and not engine.draining and engine.knows(needs)
        ]

    def complete(self, model: str) -> bool:
        """Every stage has an engine with the model, as far as its engines can have it."""
        for stage in (EngineRole.PREFILL, EngineRole.DECODE):
            able = [e for e in self.ready_engines() if e.role in (EngineRole.SIMPLE, stage)]
            hopeful = [e for e in able if model not in e.refused]
            loaded = [e for e in hopeful if model in e.loaded and model not in e.unloading]
            if hopeful and not loaded:
                return False
        return True

    def registered(self, index: int) -> Engine | Follower | None:
        """The worker of this index."""
        return self.engines.get(index) or self.followers.get(index)

    def planned_bytes(self, packed: dict[str, int]) -> int:
        """Weight cache bytes taken or promised; ``packed`` maps models to their bytes per rank."""
        held = sum(
            packed.get(model, 0) * self.ranks
            for model, replica in self.replicas.items()
            if (replica.state in _HOLDS_MEMORY or replica.reload) and model not in self.evicting
        )
        return held + sum(self.reserved.values())
