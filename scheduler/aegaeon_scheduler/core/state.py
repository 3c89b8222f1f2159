"""Everything the core knows, and the few ways in which its parts refer to each other."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aegaeon.capability import Capabilities
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.device_offers import offer_obstacle
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.estimation.estimates import Estimates
from aegaeon_scheduler.core.follower import Follower
from aegaeon_scheduler.core.links import Links
from aegaeon_scheduler.core.node import Node
from aegaeon_scheduler.core.outbox import Outbox
from aegaeon_scheduler.core.pace import Pace
from aegaeon_scheduler.core.planner import Planner
from aegaeon_scheduler.core.prefix_places import PrefixPlaces
from aegaeon_scheduler.core.replica import Replica, ReplicaState
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.statistics import Statistics
from aegaeon_scheduler.core.values import (
    DeviceFacts,
    EngineRole,
    ModelFacts,
    ModelSpec,
    PlacementPolicy,
    RoutingPolicy,
)

if TYPE_CHECKING:
    from aegaeon_scheduler.core.operations import Operation
    from aegaeon_scheduler.core.routing import Route


@dataclass(slots=True, eq=False)
class Model:
    """A model by name, with the operations on it, which run one after another."""

    spec: ModelSpec
    facts: ModelFacts | None = None
    #: The largest device that it could use when it was last READY somewhere.
    device: DeviceFacts | None = None
    #: Unfinished requests, and the tokens they reserve.
    requests: int = 0
    tokens: int = 0
    operations: deque[Operation] = field(default_factory=deque)
    #: There has been a choice of engines, or is to be: what they keep is worth remembering.
    several: bool = False
    pace: Pace = field(default_factory=Pace)


@dataclass(slots=True, eq=False)
class State:
    """The ledgers."""

    config: CoreConfig
    placement: PlacementPolicy
    routing: RoutingPolicy
    #: See `CoreConfig`.
    stealing_min_batch_gap: int
    planner: Planner
    estimates: Estimates
    #: What engines probably keep; `Engine.prefixes` has their places in it.
    prefixes: PrefixPlaces
    nodes: dict[str, Node] = field(default_factory=dict)
    #: Of those, by model, nodes that have a replica: most clusters have more nodes than that.
    homes: dict[str, dict[str, Node]] = field(default_factory=dict)
    #: Registrations by epoch: of rank 0 of every engine, and of the other ranks.
    engines: dict[int, Engine] = field(default_factory=dict)
    followers: dict[int, Follower] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    #: Unfinished requests by id.
    sequences: dict[int, Sequence] = field(default_factory=dict)
    #: Of those, without an engine, by model.
    orphans: dict[str, dict[int, Sequence]] = field(default_factory=dict)
    #: Nodes that take replicas; None is all.
    topology: frozenset[str] | None = None
    statistics: Statistics = field(default_factory=Statistics)
    links: Links = field(default_factory=Links)
    out: Outbox = field(default_factory=Outbox)
    #: Engines to plan again once the event has been handled; a dict for its order.
    stale: dict[int, Engine] = field(default_factory=dict)
    #: Models whose operations may go on.
    touched: dict[str, None] = field(default_factory=dict)
    reserved_tokens: int = 0
    pace: Pace = field(default_factory=Pace)
    last_sequence_id: int = 0
    last_handle: int = 0
    #: Who can serve a model's requests now, by what these need, see `routing`; dropped whenever
    #: that may have changed.
    routes: dict[str, dict[Capabilities, Route]] = field(default_factory=dict)
    last_placed: str = ""
    route_turns: dict[str, int] = field(default_factory=dict)
    _timers: list[tuple[int, int, int]] = field(default_factory=list)
    #: When to load a model on a node again.
    _retries: list[tuple[int, str, str]] = field(default_factory=list)

    def mark(self, engine: Engine) -> None:
        """Plan the engine again after this event."""
        self.stale[engine.epoch] = engine

    def renew_hand_offs(self, models: Iterable[str]) -> None:
        """Other engines than before can take what prefill engines hand off of these models."""
        for model in models:
            nodes = self.homes.get(model, {}).values()
            reach = [n for n in nodes if n.replicas[model].state is ReplicaState.READY]
            everywhere = [e.identity for node in reach for e in node.decoders(model)]
            for node in nodes:
                near = [e.identity for e in node.decoders(model)]
                decoded = bool(everywhere or near)
                for engine in node.engines.values():
                    if engine.role is EngineRole.PREFILL:
                        self._set_hands_off(engine, model, decoded and model in engine.loaded)
                        engine.offer_obstacles[model] = offer_obstacle(
                            engine.identity, near, everywhere
                        )

    def touch(self, model: str) -> None:
        """Let operations on the model go on after this event."""
        self.touched[model] = None

    def engine_of(self, sequence: Sequence) -> Engine | None:
        """The engine that has the sequence."""
        if sequence.engine_id is None:
            return None
        node_id, _, index = sequence.engine_id.rpartition("/")
        return self.nodes[node_id].engines[int(index)]

    def replicas(self, model: str) -> Iterator[tuple[Node, Replica]]:
        """Replicas of a model that are not ABSENT, by node id."""
        for _, node in sorted(self.homes.get(model, {}).items()):
            replica = node.replicas.get(model)
            if replica is not None:
                yield node, replica

    def note_replica(self, replica: Replica) -> None:
        """Keep up to date with a replica that has changed its state."""
        homes = self.homes.setdefault(replica.model, {})
        if replica.state is ReplicaState.ABSENT:
            homes.pop(replica.node_id, None)
        else:
            homes[replica.node_id] = self.nodes[replica.node_id]
        if not homes:
            del self.homes[replica.model]
        self.renew_hand_offs([replica.model])

    def packed_bytes(self) -> dict[str, int]:
        """Packed bytes per rank of every model whose files have been read."""
        return {
            name: model.facts.packed_bytes
            for name, model in self.models.items()
            if model.facts is not None
        }

    def model_state(self, model: str) -> ReplicaState:
        """The most useful state of a model's replicas."""
        states = {replica.state for _, replica in self.replicas(model)}
        for state in (
            ReplicaState.READY,
            ReplicaState.LOADING,
            ReplicaState.DRAINING,
            ReplicaState.FAILED,
        ):
            if state in states:
                return state
        return ReplicaState.ABSENT

    def forget_if_unused(self, name: str) -> None:
        """Drop a model that has no replica, request or operation left."""
        model = self.models.get(name)
        if model is None or model.requests or model.operations:
            return
        if next(self.replicas(name), None) is None:
            del self.models[name]

    def alarm(self, due_ns: int, kind: int, sequence_id: int) -> None:
        """Look at a sequence again at ``due_ns``; see `requests` for the kinds."""
        heapq.heappush(self._timers, (due_ns, kind, sequence_id))

    def retry_at(self, due_ns: int, model: str, node_id: str) -> None:
        """Try to load a model on a node again at ``due_ns``."""
        heapq.heappush(self._retries, (due_ns, model, node_id))

    def pop_retries(self, now_ns: int) -> Iterator[tuple[str, str]]:
        """Models and nodes that are due for another attempt."""
        while self._retries and self._retries[0][0] <= now_ns:
            _, model, node_id = heapq.heappop(self._retries)
            yield model, node_id

    def next_due_ns(self) -> int | None:
        """When the next alarm of a living sequence goes off, or a load is to be tried again."""
        while self._timers and self._timers[0][2] not in self.sequences:
            heapq.heappop(self._timers)
        due = [heap[0][0] for heap in (self._timers, self._retries) if heap]
        return min(due, default=None)

    def _set_hands_off(self, engine: Engine, model: str, hands_off: bool) -> None:
        if (model in engine.hands_off) != hands_off:
            engine.hands_off ^= {model}
            self.mark(engine)

    def pop_due(self, now_ns: int) -> Iterator[tuple[int, int]]:
        """Kinds and sequence ids of alarms that have gone off."""
        while self._timers and self._timers[0][0] <= now_ns:
            _, kind, sequence_id = heapq.heappop(self._timers)
            yield kind, sequence_id
