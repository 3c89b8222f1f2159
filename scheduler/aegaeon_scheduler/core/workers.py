"""Workers come, answer, and go."""

from __future__ import annotations

from aegaeon_scheduler.core import lifecycle, recovery, requests
from aegaeon_scheduler.core.commands import DeployProgressed, FenceWorker
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.events import (
    LoadProgressed,
    ModelFailed,
    ModelLoaded,
    ModelUnloaded,
    WorkerLost,
    WorkerReady,
    WorkerRegistered,
)
from aegaeon_scheduler.core.fingerprints import known_to_differ, loaded_alike
from aegaeon_scheduler.core.follower import Follower
from aegaeon_scheduler.core.node import Node
from aegaeon_scheduler.core.notices import RequestChange, WorkerChange, WorkerChanged
from aegaeon_scheduler.core.replica import Replica, ReplicaState
from aegaeon_scheduler.core.state import Model, State
from aegaeon_scheduler.core.values import ModelFacts, ModelSpec


def on_registered(state: State, event: WorkerRegistered, now_ns: int) -> None:
    """A worker wants to serve; an earlier registration of the same place ends."""
    identity = event.identity
    node = state.nodes.get(identity.node_id)
    if node is None:
        node = state.nodes[identity.node_id] = Node(identity.node_id, identity.memory)
    node.memory, node.ranks = identity.memory, identity.tensor_parallel_size
    earlier = node.registered(identity.worker_index)
    replaced = "another worker registered in its place"
    if isinstance(earlier, Engine):
        lose(state, earlier, replaced, now_ns)
    elif earlier is not None:
        lose_follower(state, earlier, replaced)
    if identity.rank:
        follower = Follower(event.epoch, identity)
        node.followers[identity.worker_index] = state.followers[event.epoch] = follower
        _publish(state, follower, WorkerChange.REGISTERED)
        return
    engine = Engine(event.epoch, identity, state.estimates.of(identity.device))
    node.engines[identity.worker_index] = engine
    state.engines[event.epoch] = engine
    _publish(state, engine, WorkerChange.REGISTERED)


def on_ready(state: State, engine: Engine, event: WorkerReady, now_ns: int) -> None:
    """A worker's stream is open: take over the models it has, load those it should have."""
    node = state.nodes[engine.identity.node_id]
    engine.ready = True
    _publish(state, engine, WorkerChange.CONNECTED)
    for spec, facts in event.models:
        _take_over(state, node, engine, spec, facts, now_ns)
    for replica in list(node.replicas.values()):
        if replica.state is ReplicaState.FAILED and replica.reload:
            recovery.worker_came(state, node, replica, now_ns)
        elif replica.state in (ReplicaState.READY, ReplicaState.LOADING):
            lifecycle.settle(state, node, replica, now_ns)
    state.mark(engine)


def lose(state: State, engine: Engine, reason: str, now_ns: int) -> None:
    """A worker is gone for good; its sequences go on elsewhere with the tokens they have."""
    node = state.nodes[engine.identity.node_id]
    sequences = list(engine.sequences.values())
    running = set(engine.turns[0].members) if engine.turns else set()
    for sequence in sequences:
        requests.note_loss(sequence, was_running=sequence.handle in running)
        requests.detach(state, sequence)
    for sequence in engine.held.values():
        sequence.source = None  # gone with the worker; who was to copy it computes it again
    del state.engines[engine.epoch]
    del node.engines[engine.identity.worker_index]
    state.stale.pop(engine.epoch, None)
    state.planner.forget(engine)
    state.routes.clear()
    state.out.add(FenceWorker(engine.epoch, reason))
    _publish(state, engine, WorkerChange.LOST, reason)
    for replica in list(node.replicas.values()):
        lifecycle.engine_lost(state, node, replica, engine, now_ns)
    state.renew_hand_offs(engine.loaded)
    for sequence in sequences:
        if sequence.source is None:
            sequence.prefilled_on = ""
        if sequence.losses > state.config.max_losses:
            requests.give_up(state, sequence)
            continue
        requests.route(state, sequence, RequestChange.RECOVERED, now_ns)
        if sequence.engine_id is not None:
            state.statistics.recovered += 1


def on_follower_event(state: State, epoch: int, event: object) -> None:
    """An event of a registration that is no engine's: of another rank, or of one that has ended."""
    follower = state.followers.get(epoch)
    if follower is not None and isinstance(event, WorkerLost):
        lose_follower(state, follower, event.reason)


def lose_follower(state: State, follower: Follower, reason: str) -> None:
    """A rank other than 0 is gone. Its engine finds out by itself, before or after this."""
    del state.followers[follower.epoch]
    del state.nodes[follower.identity.node_id].followers[follower.identity.worker_index]
    _publish(state, follower, WorkerChange.LOST, reason)


def on_load_progressed(state: State, engine: Engine, event: LoadProgressed) -> None:
    """Pass the progress on to the deployment that waits for it."""
    model = state.models.get(event.model)
    if model is not None and model.operations:
        state.out.add(
            DeployProgressed(
                model.operations[0].operation_id,
                engine.identity.node_id,
                ReplicaState.LOADING,
                event.packed_bytes,
                event.total_bytes,
            )
        )


def on_model_loaded(state: State, engine: Engine, event: ModelLoaded, now_ns: int) -> None:
    """A load has succeeded."""
    engine.loading.discard(event.spec.name)
    state.mark(engine)  # an idle one may take work over now
    if event.spec.name in state.models:
        lifecycle.found_loaded(state, engine, event.spec, event.facts, now_ns)
        state.touch(event.spec.name)


def on_model_failed(state: State, engine: Engine, event: ModelFailed, now_ns: int) -> None:
    """A load or an unload has failed; commands are answered in order, unloads first."""
    node = state.nodes[engine.identity.node_id]
    replica = node.replicas.get(event.model)
    state.touch(event.model)
    if event.model in engine.unloading:
        engine.unloading.discard(event.model)
        if replica is not None and replica.state is ReplicaState.DRAINING:
            lifecycle.fail(state, node, replica, event.error, now_ns)
        return
    engine.loading.discard(event.model)
    engine.refused[event.model] = event.error
    if replica is not None:
        lifecycle.settle(state, node, replica, now_ns)


def on_model_unloaded(state: State, engine: Engine, event: ModelUnloaded) -> None:
    """A model's memory has been given back."""
    engine.unloading.discard(event.model)
    engine.loaded.discard(event.model)
    engine.on_device.pop(event.model, None)
    engine.prefixes.pop(event.model, None)
    state.touch(event.model)


def _take_over(
    state: State, node: Node, engine: Engine, spec: ModelSpec, facts: ModelFacts, now_ns: int
) -> None:
    """A worker came with a loaded model: after a restart of the scheduler it tells what is served.

    A model that was removed while the worker was away, or whose name means other files now, is
    sent away instead.
    """
    name = spec.name
    engine.loaded.add(name)
    model = state.models.get(name)
    replaced = model is not None and (
        not loaded_alike(model.spec, spec) or known_to_differ(model.facts, facts)
    )
    if name in node.unwanted or replaced:
        lifecycle.ask_to_unload(state, engine, name)
        engine.loaded.discard(name)
        return
    if model is None:
        model = state.models[name] = Model(spec)
    model.facts = facts
    state.estimates.size_up(name, facts)
    replica = node.replicas.setdefault(name, Replica(name, node.node_id))
    if replica.state in (ReplicaState.ABSENT, ReplicaState.FAILED):
        lifecycle.move(state, node, replica, ReplicaState.LOADING, now_ns)
    lifecycle.settle(state, node, replica, now_ns)


def _publish(
    state: State, worker: Engine | Follower, change: WorkerChange, reason: str = ""
) -> None:
    identity = worker.identity
    state.out.publish(
        WorkerChanged(identity.node_id, identity.worker_index, worker.epoch, change, reason)
    )
