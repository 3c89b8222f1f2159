"""Chooses the node, then the engine, that takes a request."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TypeVar

from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.node import Node
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import DeviceFacts, RoutingPolicy

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Route:
    """READY nodes of a model, by id, each with the engines that can run it."""

    nodes: tuple[tuple[Node, tuple[Engine, ...]], ...]
    #: The device with the largest pool; None when no node is READY.
    largest: DeviceFacts | None


def route_of(state: State, model: str) -> Route:
    """Who can serve a model now."""
    route = state.routes.get(model)
    if route is None:
        route = state.routes[model] = _find_route(state, model)
    return route


def choose_engine(state: State, sequence: Sequence) -> Engine | None:
    """An engine of a READY node that can hold the sequence, or None when there is none now."""
    nodes = list(route_of(state, sequence.model).nodes)
    while nodes:
        chosen = _choose_node(state, sequence, nodes)
        fitting = [
            engine
            for engine in chosen[1]
            if engine.identity.device.pool_bytes >= sequence.pool_bytes
        ]
        if fitting:
            return state.engine_policy.choose(fitting, sequence)
        nodes.remove(chosen)
    return None


def _find_route(state: State, model: str) -> Route:
    found = [
        (node, tuple(node.engines_with(model)))
        for node, replica in state.replicas(model)
        if replica.state is ReplicaState.READY
    ]
    nodes = tuple((node, engines) for node, engines in found if engines)
    devices = [engine.identity.device for _, engines in nodes for engine in engines]
    return Route(nodes, max(devices, key=lambda device: device.pool_bytes, default=None))


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
