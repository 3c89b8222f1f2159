"""Chooses the node, then the engine, that takes a request."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TypeVar

from aegaeon_scheduler.core import kv_sources
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.node import Node
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import DeviceFacts, EngineRole, RoutingPolicy

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Route:
    """READY nodes of a model, by id, each with the engines that take its new requests."""

    nodes: tuple[tuple[Node, tuple[Engine, ...]], ...]
    #: The largest device that a sequence may fill on its whole way; None when no node is READY.
    largest: DeviceFacts | None


def route_of(state: State, model: str) -> Route:
    """Who can serve a model now."""
    route = state.routes.get(model)
    if route is None:
        route = state.routes[model] = _find_route(state, model)
    return route


def next_engine(state: State, sequence: Sequence) -> Engine | None:
    """Where a sequence goes: on from its hand-off if it can, else from its beginning."""
    if sequence.decode_node:
        engine = _choose_on_node(state, state.nodes[sequence.decode_node], sequence)
        source = sequence.source
        if engine is not None:
            if source is not None and source.epoch == engine.epoch:  # nobody else is left
                kv_sources.drop(state, sequence)
            return engine
        kv_sources.forget(state, sequence)
    return choose_engine(state, sequence)


def choose_engine(state: State, sequence: Sequence) -> Engine | None:
    """An engine of a READY node that can hold the sequence, or None when there is none now."""
    nodes = list(route_of(state, sequence.model).nodes)
    while nodes:
        chosen = _choose_node(state, sequence, nodes)
        engine = _choose_fitting(state, chosen[1], sequence)
        if engine is not None:
            return engine
        nodes.remove(chosen)
    return None


def _choose_on_node(state: State, node: Node, sequence: Sequence) -> Engine | None:
    """A decode engine of a node for a sequence whose first token it has made, whatever the state of
    its replica: a DRAINING one finishes what it has.
    """
    return _choose_fitting(state, node.engines_for(sequence.model, EngineRole.DECODE), sequence)


def _choose_fitting(state: State, engines: Items[Engine], sequence: Sequence) -> Engine | None:
    fitting = [e for e in engines if e.identity.device.pool_bytes >= sequence.pool_bytes]
    return state.planner.choose(fitting, sequence) if fitting else None


def _find_route(state: State, model: str) -> Route:
    ready = [n for n, replica in state.replicas(model) if replica.state is ReplicaState.READY]
    found = [(node, tuple(node.engines_for(model, EngineRole.PREFILL))) for node in ready]
    nodes = tuple((node, engines) for node, engines in found if engines)
    devices = [
        min(_largest(engines), _largest(node.engines_for(model, EngineRole.DECODE)), key=_pool)
        for node, engines in nodes
    ]
    return Route(nodes, max(devices, key=_pool, default=None))


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
