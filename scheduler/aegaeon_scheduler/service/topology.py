"""What clients expect of the cluster, checked against what is registered."""

from __future__ import annotations

from typing import TypeVar

from aegaeon.errors import AegaeonError, ErrorReason, InvalidRequestError, PreconditionError
from aegaeon.v1 import cluster_pb2
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.events import TopologyApplied
from aegaeon_scheduler.core.expectation import NodeExpectation
from aegaeon_scheduler.core.node import Node
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import (
    EngineRole,
    NodeMemory,
    PlacementPolicy,
    RoutingPolicy,
)

_COUNTS = ("num_engines", "num_prefill_engines", "num_decode_engines", "tensor_parallel_size")
_MAX_COUNT = 1_024

_Policy = TypeVar("_Policy", PlacementPolicy, RoutingPolicy)


def topology(request: cluster_pb2.ApplyTopologyRequest, routing: RoutingPolicy) -> TopologyApplied:
    """The topology as the core takes it, with ``routing`` where it names none; raises on
    contradictory numbers."""
    if not request.nodes:
        raise _field("nodes", "empty", "at least one node")
    nodes = tuple(_expectation(node) for node in request.nodes)
    names = [node.node_id for node in nodes]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise _field("nodes.node_id", ", ".join(sorted(twice)), "named once")
    prefills = any(node.num_engines or node.num_prefill_engines for node in nodes)
    decodes = any(node.num_engines or node.num_decode_engines for node in nodes)
    if not prefills or not decodes:
        raise _field(
            "nodes.num_prefill_engines and nodes.num_decode_engines",
            "0 on every node for one of them",
            "at least 1 on some node for each, unless a node has num_engines",
        )
    gap = request.decode_work_stealing_min_batch_gap
    if gap == 1:
        raise _field("decode_work_stealing_min_batch_gap", gap, "0 for none, or at least 2")
    return TopologyApplied(
        nodes,
        _policy("placement_policy", request.placement_policy, PlacementPolicy.LEAST_LOADED),
        _policy("routing_policy", request.routing_policy, routing),
        gap,
    )


def missing_workers(state: State, wanted: TopologyApplied) -> list[str]:
    """What the topology needs and has not: workers, with their rank where an engine has several,
    and engines in the role asked for."""
    missing = []
    for node in wanted.nodes:
        known = state.nodes.get(node.node_id) or Node(node.node_id, NodeMemory(0, 0, 0))
        for first, role in _engines(node):
            missing += _missing_of(known, first, role, node.tensor_parallel_size)
    return missing


def _missing_of(node: Node, first: int, role: EngineRole, size: int) -> list[str]:
    """What one engine lacks; ``first`` is the index of its rank 0."""
    name = f"{node.node_id}/{first}"
    missing = []
    for rank in range(size):
        worker = node.registered(first + rank)
        of_engine = "" if size == 1 else f" (rank {rank} of {size} of engine {name})"
        if worker is None:
            missing.append(f"{node.node_id}/{first + rank}{of_engine}")
        elif worker.identity.tensor_parallel_size != size:
            found = worker.identity.tensor_parallel_size
            missing.append(
                f"{node.node_id}/{first + rank} with a tensor_parallel_size of {size}, not {found}"
            )
    engine = node.engines.get(first)
    if missing or engine is None:
        return missing
    if not engine.ready:
        return [name if size == 1 else f"{name}, whose {size} ranks are not connected yet"]
    return [] if engine.role is role else [f"{name} as {role.name.lower()} engine"]


def check_memory(state: State, wanted: TopologyApplied) -> None:
    """Raise when a node has registered with less memory than the topology asks for."""
    for node in wanted.nodes:
        memory = state.nodes[node.node_id].memory
        for name, asked, found in (
            ("cpu_num_slabs", node.cpu_num_slabs, memory.cpu_num_slabs),
            ("cpu_slab_bytes", node.cpu_slab_bytes, memory.cpu_slab_bytes),
            ("weight_cache_bytes", node.weight_cache_bytes, memory.weight_cache_bytes),
        ):
            if asked > found:
                raise PreconditionError(
                    f"node {node.node_id!r} is registered with {name} {found}, but {asked} is "
                    "asked for; restart its workers with more, or ask for less",
                    reason=ErrorReason.TOPOLOGY_INVALID,
                    metadata={"node_id": node.node_id, "asked": asked, "found": found},
                )


def engines_of(state: State, wanted: TopologyApplied) -> list[Engine]:
    """The engines that a topology names, by node and index."""
    return [
        state.nodes[node.node_id].engines[first]
        for node in wanted.nodes
        for first, _ in _engines(node)
    ]


def _engines(node: NodeExpectation) -> list[tuple[int, EngineRole]]:
    """The worker index of every engine's rank 0, and what the engine is for."""
    roles = (
        [EngineRole.SIMPLE] * node.num_engines
        + [EngineRole.PREFILL] * node.num_prefill_engines
        + [EngineRole.DECODE] * node.num_decode_engines
    )
    return [(number * node.tensor_parallel_size, role) for number, role in enumerate(roles)]


def _expectation(node: cluster_pb2.NodeTopology) -> NodeExpectation:
    if not node.node_id:
        raise _field("nodes.node_id", "empty", "the id under which workers register")
    for name in _COUNTS:
        if (count := getattr(node, name)) > _MAX_COUNT:
            raise _field(f"nodes.{name}", count, f"at most {_MAX_COUNT}")
    prefill, decode = node.num_prefill_engines, node.num_decode_engines
    if node.num_engines and (prefill or decode):
        raise _field("nodes.num_engines", node.num_engines, "0 beside dedicated engines")
    if not (node.num_engines or prefill or decode):
        raise _field("nodes.num_engines", node.num_engines, "at least 1 without dedicated engines")
    return NodeExpectation(
        node.node_id,
        node.num_engines,
        prefill,
        decode,
        node.cpu_num_slabs,
        node.cpu_slab_bytes,
        node.weight_cache_bytes,
        node.tensor_parallel_size or 1,
    )


def _policy(name: str, number: int, default: _Policy) -> _Policy:
    try:
        return type(default)(number or default)
    except ValueError:
        raise _field(name, number, "a policy of this contract version") from None


def _field(name: str, value: object, rule: str) -> AegaeonError:
    return InvalidRequestError(
        f"{name} is {value}; it must be {rule}", metadata={"field": name, "value": value}
    )
