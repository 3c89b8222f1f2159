"""Models that were lost with their workers, or with an earlier scheduler, and come back."""

from __future__ import annotations

from aegaeon_scheduler.core import lifecycle
from aegaeon_scheduler.core.node import Node
from aegaeon_scheduler.core.replica import Replica, ReplicaState
from aegaeon_scheduler.core.saved import SavedCluster, SavedModel, SavedTopology
from aegaeon_scheduler.core.state import Model, State
from aegaeon_scheduler.core.values import DeviceFacts, NodeMemory

#: Workers in a row that may be lost while they load a model; after that, attempts are
#: `lifecycle.RETRY_NS` apart, since the model may be the reason.
MAX_LOAD_LOSSES = 5


def saved(state: State) -> SavedCluster:
    """What a later scheduler has to know."""
    topology = None
    if state.topology is not None:
        topology = SavedTopology(
            tuple(sorted(state.topology)),
            state.placement,
            state.routing,
            state.stealing_min_batch_gap,
        )
    models = []
    for name, model in sorted(state.models.items()):
        wanted = [node.node_id for node, replica in state.replicas(name) if _wanted(replica)]
        if wanted:
            models.append(SavedModel(model.spec, model.facts, model.device, tuple(wanted)))
    return SavedCluster(topology, tuple(models))


def restore(state: State, known: SavedCluster, now_ns: int) -> None:
    """Take over what an earlier scheduler knew; its workers are about to come back."""
    if known.topology is not None:
        state.topology = frozenset(known.topology.node_ids)
        state.placement, state.routing = known.topology.placement, known.topology.routing
        state.stealing_min_batch_gap = known.topology.stealing_min_batch_gap
    for one in known.models:
        name = one.spec.name
        model = state.models[name] = Model(one.spec, one.facts, one.device)
        if model.facts is not None:
            state.estimates.size_up(name, model.facts)
        for node_id in one.node_ids:
            node = state.nodes.setdefault(node_id, Node(node_id, NodeMemory(0, 0, 0)))
            # Without a worker it fails at once, and loads when one comes.
            lifecycle.begin_load(state, node, name, now_ns)
            if one.device is not None:
                node.replicas[name].lost_ns = now_ns


def device_of_recovering(state: State, name: str, now_ns: int) -> DeviceFacts | None:
    """The largest device that served a model which has just been lost, or whose engines are about
    to be stopped, and which is expected back; its requests wait for it. None for other models."""
    model = state.models.get(name)
    if model is None or model.facts is None:
        return None
    horizon_ns = state.config.recovery_timeout_ns
    for node, replica in state.replicas(name):
        leaving = [engine.draining_since_ns for engine in node.engines_with(name)]
        if leaving and min(leaving) >= 0 and now_ns - min(leaving) < horizon_ns:
            return model.device
        lost = replica.state in (ReplicaState.FAILED, ReplicaState.LOADING)
        if lost and replica.lost_ns >= 0 and now_ns - replica.lost_ns < horizon_ns:
            return model.device
    return None


def worker_came(state: State, node: Node, replica: Replica, now_ns: int) -> None:
    """A node has a worker again: load what was lost with an earlier one."""
    if replica.load_losses < MAX_LOAD_LOSSES:
        lifecycle.begin_load(state, node, replica.model, now_ns, again=True)
    else:
        state.retry_at(now_ns + lifecycle.RETRY_NS, replica.model, node.node_id)


def retry(state: State, now_ns: int) -> None:
    """Load again what is due for another attempt."""
    for model, node_id in list(state.pop_retries(now_ns)):
        node = state.nodes[node_id]
        replica = node.replicas.get(model)
        if replica is None or replica.state is not ReplicaState.FAILED:
            continue
        if replica.lost_ns >= 0 and node.ready_engines():
            lifecycle.begin_load(state, node, model, now_ns, again=True)


def _wanted(replica: Replica) -> bool:
    if replica.state is ReplicaState.FAILED:
        return replica.reload or replica.lost_ns >= 0
    return replica.state in (ReplicaState.READY, ReplicaState.LOADING)
