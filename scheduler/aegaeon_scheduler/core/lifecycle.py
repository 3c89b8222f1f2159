"""Moves replicas through their life by asking the engines of their node to load and unload."""

from __future__ import annotations

from aegaeon.errors import AegaeonError, ErrorReason, ModelLoadError, UnavailableError
from aegaeon_scheduler.core import requests
from aegaeon_scheduler.core.commands import LoadModel, UnloadModel
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.fingerprints import known_to_differ
from aegaeon_scheduler.core.node import Node
from aegaeon_scheduler.core.notices import ReplicaChanged
from aegaeon_scheduler.core.replica import Replica, ReplicaState
from aegaeon_scheduler.core.routing import route_of
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import ModelFacts, ModelSpec

#: Time between two attempts to load what was served before and cannot be loaded now, in ns.
RETRY_NS = 10_000_000_000


def move(
    state: State,
    node: Node,
    replica: Replica,
    target: ReplicaState,
    now_ns: int,
    error: AegaeonError | None = None,
) -> None:
    """Change a replica's state, and tell everybody who waits for that."""
    replica.move(target, error)
    state.note_replica(replica)
    state.routes.pop(replica.model, None)
    state.out.publish(
        ReplicaChanged(replica.model, node.node_id, target, replica.active_requests, error)
    )
    state.touch(replica.model)
    if target is ReplicaState.READY:
        found = state.models[replica.model]
        found.device = route_of(state, replica.model).largest or found.device
        requests.route_orphans(state, replica.model, now_ns)
    elif target is ReplicaState.ABSENT:
        del node.replicas[replica.model]
        node.evicting.discard(replica.model)
        node.unwanted.add(replica.model)
        for name, model in state.models.items():
            if model.operations:  # one of them may have waited for this room
                state.touch(name)


def begin_load(state: State, node: Node, model: str, now_ns: int, *, again: bool = False) -> None:
    """Start a replica on a node; it becomes READY or FAILED later. ``again`` without anybody's
    having asked for it anew."""
    replica = node.replicas.setdefault(model, Replica(model, node.node_id))
    if not again:
        replica.load_losses = 0
    node.unwanted.discard(model)
    for engine in node.engines.values():
        engine.refused.pop(model, None)
    move(state, node, replica, ReplicaState.LOADING, now_ns)
    settle(state, node, replica, now_ns)


def begin_drain(state: State, node: Node, replica: Replica, now_ns: int) -> None:
    """Let a READY replica finish what it has, then leave."""
    move(state, node, replica, ReplicaState.DRAINING, now_ns)
    drain(state, node, replica, now_ns)


def settle(state: State, node: Node, replica: Replica, now_ns: int) -> None:
    """Go on with a LOADING or READY replica after its engines changed.

    One engine packs the model first; once it has, the others find it in the host cache.
    """
    if replica.state not in (ReplicaState.LOADING, ReplicaState.READY):
        return
    model, engines = replica.model, node.ready_engines()
    if any(node.engines_with(model)):
        if replica.state is ReplicaState.LOADING and node.complete(model):
            move(state, node, replica, ReplicaState.READY, now_ns)
        for engine in engines:
            _ask_to_load(state, engine, model)
        return
    if replica.state is not ReplicaState.LOADING or any(model in e.loading for e in engines):
        return
    for engine in engines:
        if _ask_to_load(state, engine, model):
            return
    refusals = [engine.refused[model] for engine in engines if model in engine.refused]
    fail(state, node, replica, refusals[-1] if refusals else _lost(node), now_ns)
    replica.reload = not refusals
    if refusals and replica.lost_ns >= 0:  # it was served here before: what refuses it may pass
        state.retry_at(now_ns + RETRY_NS, model, node.node_id)


def drain(state: State, node: Node, replica: Replica, now_ns: int) -> None:
    """Unload a DRAINING replica once nothing of it runs; remove it once it is unloaded."""
    model = replica.model
    engines = node.ready_engines()
    if replica.active_requests or any(
        engine.busy_with(model) or model in engine.loading for engine in engines
    ):
        return
    for engine in engines:
        ask_to_unload(state, engine, model)
    if not any(model in engine.unloading for engine in engines):
        move(state, node, replica, ReplicaState.ABSENT, now_ns)


def advance(state: State, model: str, now_ns: int) -> None:
    """Go on with the DRAINING replicas of a model."""
    for node, replica in list(state.replicas(model)):
        if replica.state is ReplicaState.DRAINING:
            drain(state, node, replica, now_ns)


def engine_lost(state: State, node: Node, replica: Replica, engine: Engine, now_ns: int) -> None:
    """An engine of the node is gone; its sequences have left it already."""
    if replica.state is ReplicaState.LOADING:
        replica.load_losses += replica.model in engine.loading
        settle(state, node, replica, now_ns)
    elif replica.state is ReplicaState.DRAINING:  # it may have waited for just this engine
        drain(state, node, replica, now_ns)
    elif replica.state is ReplicaState.READY and not any(node.engines_with(replica.model)):
        fail(state, node, replica, _lost(node), now_ns)
        replica.reload = True
        replica.lost_ns = now_ns
        if node.ready_engines():  # one of them may be loading it already
            begin_load(state, node, replica.model, now_ns, again=True)


def fail(state: State, node: Node, replica: Replica, error: AegaeonError, now_ns: int) -> None:
    """Move a replica to FAILED, with the reason that a deployment reports."""
    move(state, node, replica, ReplicaState.FAILED, now_ns, error)


def found_loaded(
    state: State, engine: Engine, spec: ModelSpec, facts: ModelFacts, now_ns: int
) -> None:
    """A model has been loaded on an engine: use it, or send it away when it is not the one."""
    node = state.nodes[engine.identity.node_id]
    model = state.models[spec.name]
    replica = node.replicas.get(spec.name)
    engine.loaded.add(spec.name)
    if replica is None or replica.state is ReplicaState.FAILED:
        ask_to_unload(state, engine, spec.name)
        return
    if _differs(state, spec.name, facts):
        ask_to_unload(state, engine, spec.name)
        engine.loaded.discard(spec.name)
        engine.refused[spec.name] = ModelLoadError(
            f"the files of model {spec.name!r} on node {node.node_id!r} differ from those of its "
            "other replicas, in content or modification time; copy them with `rsync -a`, or let "
            "all nodes read one folder",
            metadata={"path": spec.path},
        )
        settle(state, node, replica, now_ns)
        return
    model.facts = facts
    state.estimates.size_up(spec.name, facts)
    settle(state, node, replica, now_ns)
    requests.route_orphans(state, spec.name, now_ns)


def _differs(state: State, model: str, facts: ModelFacts) -> bool:
    """Whether READY replicas of a model have other weights than these."""
    if not known_to_differ(state.models[model].facts, facts):
        return False
    return any(replica.state is ReplicaState.READY for _, replica in state.replicas(model))


def ask_to_unload(state: State, engine: Engine, model: str) -> None:
    """Send UnloadModel once to an engine that has the model."""
    if model in engine.loaded and model not in engine.unloading:
        engine.unloading.add(model)
        state.routes.pop(model, None)
        state.out.add(UnloadModel(engine.epoch, model))


def _ask_to_load(state: State, engine: Engine, model: str) -> bool:
    if model in engine.loading or model in engine.refused:
        return False
    if model in engine.loaded and model not in engine.unloading:
        return False
    engine.loading.add(model)
    state.out.add(LoadModel(engine.epoch, state.models[model].spec))
    return True


def _lost(node: Node) -> AegaeonError:
    return UnavailableError(
        f"node {node.node_id!r} has no connected worker", reason=ErrorReason.WORKER_LOST
    )
