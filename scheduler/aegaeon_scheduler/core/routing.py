"""Chooses the node, then the engine, that takes a request."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TypeVar

from aegaeon.capability import NO_CAPABILITIES, Capabilities
from aegaeon_scheduler.core import kv_sources, prefix_routing
from aegaeon_scheduler.core.decoders import choose_decoder, decoders
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.node import Node
from aegaeon_scheduler.core.notices import PrefixPull
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import DeviceFacts, EngineRole, RoutingPolicy

_Item = TypeVar("_Item")

#: What watchers are told of a choice, by policy.
_WHY = {
    RoutingPolicy.LEAST_OUTSTANDING: "fewest requests",
    RoutingPolicy.ROUND_ROBIN: "in turn",
    RoutingPolicy.PREFIX_AWARE: "fewest requests",
}


@dataclass(frozen=True, slots=True)
class Route:
    """READY nodes of a model, by id, each with the engines that take its new requests."""

    nodes: tuple[tuple[Node, tuple[Engine, ...]], ...]
    #: The largest device that a sequence may fill on its whole way; None when no node is READY.
    largest: DeviceFacts | None

    @property
    def engines(self) -> list[Engine]:
        """Those of all nodes."""
        return [engine for _, engines in self.nodes for engine in engines]


def route_of(state: State, model: str, needs: Capabilities = NO_CAPABILITIES) -> Route:
    """Who can serve requests of a model now that need this."""
    routes = state.routes.setdefault(model, {})
    route = routes.get(needs)
    if route is None:
        route = routes[needs] = _find_route(state, model, needs)
    return route


def next_engine(state: State, sequence: Sequence, now_ns: int) -> Engine | None:
    """Where a sequence goes: on from its hand-off if it can, else from its beginning."""
    if sequence.prefilled_on:
        engine = choose_decoder(state, sequence, now_ns)
        source = sequence.source
        if engine is not None:
            if source is not None and source.epoch == engine.epoch:  # nobody else is left
                kv_sources.drop(state, sequence)
            _explain(sequence, "soonest to go on from its first token")
            return engine
        kv_sources.forget(state, sequence)
    return choose_engine(state, sequence) or _leaving_engine(state, sequence)


def choose_engine(state: State, sequence: Sequence) -> Engine | None:
    """An engine of a READY node that can hold the sequence, or None when there is none now.

    Leaves with the sequence why it was that one.
    """
    _explain(sequence, _WHY[state.routing])
    usual = _choose_usual(state, sequence)
    if usual is None or state.routing is not RoutingPolicy.PREFIX_AWARE:
        return usual
    engines = _fitting(route_of(state, sequence.model, sequence.needs).engines, sequence)
    return prefix_routing.prefer(state, sequence, usual, engines)


def _explain(sequence: Sequence, why: str) -> None:
    """Forget the reasons for an earlier engine."""
    sequence.why, sequence.pull, sequence.expected_cached = why, PrefixPull.NONE, 0


def _choose_usual(state: State, sequence: Sequence) -> Engine | None:
    """Who takes a sequence where nothing is known of its beginning."""
    nodes = list(route_of(state, sequence.model, sequence.needs).nodes)
    while nodes:
        chosen = _choose_node(state, sequence, nodes)
        engine = _choose_fitting(state, chosen[1], sequence)
        if engine is not None:
            return engine
        nodes.remove(chosen)
    return None


def _leaving_engine(state: State, sequence: Sequence) -> Engine | None:
    """An engine that is to be stopped and waits for its last sequences: nobody else can take this
    one, which has begun."""
    if not sequence.handle:  # it has not, and waits for an engine that stays
        return None
    leaving = [
        engine
        for node, replica in state.replicas(sequence.model)
        if replica.state is ReplicaState.READY
        for engine in node.engines_with(sequence.model)
        if engine.draining and engine.knows(sequence.needs)
    ]
    return _choose_fitting(state, leaving, sequence)


def _choose_fitting(state: State, engines: Items[Engine], sequence: Sequence) -> Engine | None:
    fitting = _fitting(engines, sequence)
    return state.planner.choose(fitting, sequence) if fitting else None


def _fitting(engines: Items[Engine], sequence: Sequence) -> list[Engine]:
    return [e for e in engines if e.identity.device.pool_bytes >= sequence.pool_bytes]


def _find_route(state: State, model: str, needs: Capabilities) -> Route:
    ready = [n for n, replica in state.replicas(model) if replica.state is ReplicaState.READY]
    found = [(node, _beginners(state, node, model, needs)) for node in ready]
    found = [(node, engines) for node, engines in found if engines]
    # A node of decode engines alone gets new requests only where nobody else takes them.
    meant = [entry for entry in found if entry[1][0].role is not EngineRole.DECODE]
    nodes = tuple(meant or found)
    devices = [
        min(_largest(engines), _largest(_decoders(state, node, model, needs) or engines), key=_pool)
        for node, engines in nodes
    ]
    return Route(nodes, max(devices, key=_pool, default=None))


def _beginners(state: State, node: Node, model: str, needs: Capabilities) -> tuple[Engine, ...]:
    """Who takes new requests on a node; with needs, nobody who leaves them to engines that do not
    know these."""
    engines = node.engines_for(model, EngineRole.PREFILL, needs)
    if needs and not _decoders(state, node, model, needs):
        engines = [engine for engine in engines if model not in engine.hands_off]
    return tuple(engines)


def _decoders(state: State, node: Node, model: str, needs: Capabilities) -> list[Engine]:
    """Who may go on with what a node's engines have begun."""
    return [e for engines in decoders(state, node, model, needs) for e in engines]


def _largest(engines: Items[Engine]) -> DeviceFacts:
    return max((engine.identity.device for engine in engines), key=_pool)


def _pool(device: DeviceFacts) -> int:
    return device.pool_bytes


def _choose_node(
    state: State, sequence: Sequence, nodes: list[tuple[Node, tuple[Engine, ...]]]
) -> tuple[Node, tuple[Engine, ...]]:
    if state.routing is RoutingPolicy.ROUND_ROBIN:
        turn = state.route_turns.get(sequence.model, 0)
        state.route_turns[sequence.model] = turn + 1
        return nodes[turn % len(nodes)]
    least = min([node.active_requests for node, _ in nodes])
    return _rotate([item for item in nodes if item[0].active_requests == least], sequence)


def _rotate(ties: Items[_Item], sequence: Sequence) -> _Item:
    return ties[sequence.sequence_id % len(ties)]
