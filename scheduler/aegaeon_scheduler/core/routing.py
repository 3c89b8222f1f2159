"""Chooses the node, then the engine, that takes a request."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TypeVar

from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.node import Node
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import RoutingPolicy

_Item = TypeVar("_Item")


def choose_engine(state: State, sequence: Sequence) -> Engine | None:
    """An engine of a READY node that can hold the sequence, or None when there is none now."""
    candidates: list[tuple[Node, list[Engine]]] = []
    for node, replica in state.replicas(sequence.model):
        if replica.state is not ReplicaState.READY:
            continue
        engines = [
            engine
            for engine in node.engines_with(sequence.model)
            if engine.identity.device.pool_bytes >= sequence.pool_bytes
        ]
        if engines:
            candidates.append((node, engines))
    if not candidates:
        return None
    return _choose_in_node(state, sequence, _choose_node(state, sequence, candidates))


def _choose_node(
    state: State, sequence: Sequence, candidates: list[tuple[Node, list[Engine]]]
) -> list[Engine]:
    if state.routing is RoutingPolicy.ROUND_ROBIN:
        turn = state.route_turns.get(sequence.model, 0)
        state.route_turns[sequence.model] = turn + 1
        return candidates[turn % len(candidates)][1]
    loads = [node.active_requests() for node, _ in candidates]
    return _rotate(
        [c for c, load in zip(candidates, loads, strict=True) if load == min(loads)], sequence
    )[1]


def _choose_in_node(state: State, sequence: Sequence, engines: list[Engine]) -> Engine:
    """Prefer engines that have the model at hand, unless they are far ahead in load."""
    least = min(len(engine.sequences) for engine in engines)
    near = [
        engine
        for engine in engines
        if (engine.resident == sequence.model or sequence.model in engine.queues)
        and len(engine.sequences) <= least + state.config.affinity_slack
    ]
    pool = near or engines
    least = min(len(engine.sequences) for engine in pool)
    return _rotate([engine for engine in pool if len(engine.sequences) == least], sequence)


def _rotate(ties: Items[_Item], sequence: Sequence) -> _Item:
    return ties[sequence.sequence_id % len(ties)]
