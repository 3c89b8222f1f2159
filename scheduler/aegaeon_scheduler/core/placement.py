"""Chooses nodes for replicas, and the idle models that leave to make room."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon.errors import AegaeonError, ErrorReason, ResourceExhaustedError, UnavailableError
from aegaeon_scheduler.core.admission import fits_device, pool_bytes
from aegaeon_scheduler.core.node import Node
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import ModelFacts, PlacementPolicy


@dataclass(frozen=True, slots=True)
class Site:
    """A node that can take a replica once ``evict`` is gone."""

    node: Node
    evict: tuple[str, ...]
    evicted_bytes: int
    free_bytes: int

    def rank(self) -> tuple[bool, int, int, int, int, str]:
        """Smallest is best: no eviction, fewer bytes evicted, fewer active requests, more free
        cache, fewer cached models, node id.
        """
        return (
            bool(self.evict),
            self.evicted_bytes,
            self.node.active_requests,
            -self.free_bytes,
            len(self.node.replicas),
            self.node.node_id,
        )


def survey(
    state: State, node: Node, facts: ModelFacts, packed: dict[str, int]
) -> Site | AegaeonError:
    """How a node could take a model now, or why it cannot; ``packed`` as `State.packed_bytes`."""
    engines = node.lasting_engines()
    if not engines:
        return UnavailableError(
            f"node {node.node_id!r} has no connected worker that stays",
            reason=ErrorReason.WORKER_LOST,
        )
    if not any(fits_device(facts, engine.identity.device) for engine in engines):
        pool = max(engine.identity.device.pool_bytes for engine in engines)
        needed = min(pool_bytes(facts, 1, e.identity.device.chunk_bytes) for e in engines)
        return _too_big(node, "its largest device pool", needed, pool)
    budget = node.memory.weight_cache_bytes
    free = budget - node.planned_bytes(packed)
    wanted = facts.packed_bytes * node.ranks
    if wanted > budget:
        return _too_big(node, "its weight cache", wanted, budget)
    evict: list[str] = []
    room = free
    # Who is idle takes long to find out, and matters only where there is no room.
    for model in _idle(state, node) if room < wanted else ():
        if room >= wanted:
            break
        evict.append(model)
        room += packed.get(model, 0) * node.ranks
    if room < wanted:
        return _too_big(node, "its weight cache beside busy models", wanted, room)
    return Site(node, tuple(evict), room - free, free)


def choose(state: State, sites: list[Site], count: int) -> list[Site]:
    """The ``count`` best sites, or all of them when there are fewer."""
    if state.placement is PlacementPolicy.ROUND_ROBIN:
        ordered = sorted(sites, key=lambda site: site.node.node_id)
        after = [site for site in ordered if site.node.node_id > state.last_placed]
        chosen = (after + ordered)[: min(count, len(ordered))]
        if chosen:
            state.last_placed = chosen[-1].node.node_id
        return chosen
    return sorted(sites, key=Site.rank)[:count]


def _idle(state: State, node: Node) -> list[str]:
    """Models that may leave a node, least recently used first."""
    idle = [
        (replica.last_used_ns, name)
        for name, replica in node.replicas.items()
        if replica.state is ReplicaState.READY
        and not replica.active_requests
        and not state.models[name].operations
        and not any(engine.busy_with(name) for engine in node.engines.values())
    ]
    return [name for _, name in sorted(idle)]


def _too_big(node: Node, what: str, needed: int, available: int) -> AegaeonError:
    return ResourceExhaustedError(
        f"node {node.node_id!r}: the model needs {needed} bytes, but {what} has {available}; "
        "enlarge it, or deploy the model elsewhere",
        reason=ErrorReason.INSUFFICIENT_MEMORY,
        metadata={"needed_bytes": needed, "available_bytes": available, "node_id": node.node_id},
    )
