"""The core's ledgers and notices as contract messages, for operators."""

from __future__ import annotations

import time

from aegaeon.rpc.needs import contract_names
from aegaeon.rpc.status import to_detail
from aegaeon.v1 import cluster_pb2, model_pb2
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.follower import Follower
from aegaeon_scheduler.core.notices import (
    KvMoved,
    Notice,
    ReplicaChanged,
    RequestChanged,
    TurnChanged,
    WorkerChanged,
)
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.statistics import Statistics
from aegaeon_scheduler.core.values import WorkerIdentity, WorkerMemory
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.models import model_infos


def runtime_snapshot(driver: Driver) -> cluster_pb2.RuntimeSnapshot:
    """The cluster at this moment."""
    state = driver.cluster.state
    sequences = state.sequences.values()
    waiting = sum(1 for s in sequences if len(s.generated) == s.inherited)
    return cluster_pb2.RuntimeSnapshot(
        taken_unix_ns=time.time_ns(),
        started_unix_ns=driver.started_unix_ns,
        workers=[_worker(state, worker) for worker in _workers(state)],
        engines=engine_infos(state),
        models=model_infos(state),
        active_requests=len(sequences),
        waiting_requests=waiting,
        statistics=_statistics(state.statistics, driver.statistics_since_unix_ns),
        kv_links=_links(state),
        prefix_index_blocks=len(state.prefixes),
        routing_policy=cluster_pb2.RoutingPolicy.Name(state.routing),
    )


def engine_infos(state: State) -> list[cluster_pb2.EngineInfo]:
    """Every engine of which a worker has registered, by node and index."""
    found: dict[str, WorkerIdentity] = {}
    for worker in _workers(state):
        found.setdefault(worker.identity.engine_id, worker.identity)
    return [
        engine_info(state, engine)
        if (engine := state.nodes[one.node_id].engines.get(one.engine_indexes[0]))
        else _formation(state, one)
        for one in found.values()
    ]


def engine_info(state: State, engine: Engine) -> cluster_pb2.EngineInfo:
    """One engine."""
    info = _formation(state, engine.identity)
    info.MergeFrom(_activity(engine))
    info.prefix_followed = state.statistics.prefix_followed[engine.engine_id]
    return info


def _formation(state: State, one: WorkerIdentity) -> cluster_pb2.EngineInfo:
    """Which workers an engine has, ``one`` being any of them."""
    node = state.nodes[one.node_id]
    here = [index for index in one.engine_indexes if node.registered(index)]
    return cluster_pb2.EngineInfo(
        engine_id=one.engine_id,
        node_id=one.node_id,
        role=cluster_pb2.EngineRole.Name(one.role),
        worker_indexes=here,
        missing_worker_indexes=[index for index in one.engine_indexes if index not in here],
    )


def _activity(engine: Engine) -> cluster_pb2.EngineInfo:
    return cluster_pb2.EngineInfo(
        ready=engine.ready,
        current_model=engine.turns[0].model if engine.turns else "",
        sequences=len(engine.sequences),
        turns=engine.turn_count,
        switches=engine.switch_count,
        tokens=engine.token_count,
        held_sequences=len(engine.held),
        estimates=[_estimate(engine, model) for model in sorted(engine.loaded)],
    )


def _estimate(engine: Engine, model: str) -> cluster_pb2.ModelEstimate:
    times = engine.estimator.times(model)
    latest = times.latest
    return cluster_pb2.ModelEstimate(
        model=model,
        step_time_ns=round(engine.step_ns(model)),
        sequences=engine.batch_of(model) or 1,
        switch_time_ns=round(engine.estimator.switch_ns(model)),
        measured_step_time_ns=latest.step_ns if latest else 0,
        expected_step_time_ns=round(latest.expected_ns) if latest else 0,
        step_error=times.decode.fit.deviation,
        measurements=times.observed,
    )


def cluster_event(notice: Notice, number: int) -> cluster_pb2.ClusterEvent:
    """A notice, numbered and dated."""
    event = cluster_pb2.ClusterEvent(number=number, unix_ns=time.time_ns())
    match notice:
        case WorkerChanged():
            event.worker.CopyFrom(_worker_changed(notice))
        case ReplicaChanged():
            event.replica.CopyFrom(_replica_changed(notice))
        case TurnChanged():
            event.turn.CopyFrom(_turn_changed(notice))
        case RequestChanged():
            event.request.CopyFrom(_request_changed(notice))
        case KvMoved():
            event.kv.CopyFrom(_kv_moved(notice))
    return event


def _workers(state: State) -> list[Engine | Follower]:
    workers: list[Engine | Follower] = [*state.engines.values(), *state.followers.values()]
    return sorted(workers, key=lambda w: (w.identity.node_id, w.identity.worker_index))


def _worker(state: State, worker: Engine | Follower) -> cluster_pb2.WorkerInfo:
    identity = worker.identity
    engine = state.nodes[identity.node_id].engines.get(identity.engine_indexes[0])
    usage = worker.usage if isinstance(worker, Engine) else None
    device, memory = identity.device, identity.memory
    return cluster_pb2.WorkerInfo(
        node_id=identity.node_id,
        worker_index=identity.worker_index,
        epoch=worker.epoch,
        address=identity.address,
        device=cluster_pb2.DeviceFacts(
            kind=device.kind,
            name=device.name,
            pool_bytes=device.pool_bytes,
            chunk_bytes=device.chunk_bytes,
            memory_bytes_per_s=device.memory_bytes_per_s,
            host_link_bytes_per_s=device.host_link_bytes_per_s,
            flops_per_s=device.flops_per_s,
        ),
        memory=cluster_pb2.NodeMemory(
            cpu_num_slabs=memory.cpu_num_slabs,
            cpu_slab_bytes=memory.cpu_slab_bytes,
            weight_cache_bytes=memory.weight_cache_bytes,
        ),
        pid=identity.pid,
        connected=engine is not None and engine.ready,
        draining=engine is not None and engine.draining,
        contract_version=identity.contract_version,
        capabilities=contract_names(identity.capabilities),
        kv_sharing=cluster_pb2.KvSharing(
            device=identity.kv_sharing.device,
            readable=sorted(identity.kv_sharing.readable),
            obstacle=identity.kv_sharing.obstacle,
        ),
        usage=None if usage is None else _usage(usage),
        rank=identity.rank,
    )


def _usage(usage: WorkerMemory) -> cluster_pb2.WorkerMemory:
    return cluster_pb2.WorkerMemory(
        device_weight_bytes=usage.device_weight_bytes,
        device_kv_bytes=usage.device_kv_bytes,
        device_free_bytes=usage.device_free_bytes,
        host_kv_bytes=usage.host_kv_bytes,
        weight_cache_bytes=usage.weight_cache_bytes,
        sequences=usage.sequences,
        prefix_device_bytes=usage.prefix_device_bytes,
        prefix_host_bytes=usage.prefix_host_bytes,
        prefix_queried_tokens=usage.prefix_queried_tokens,
        prefix_reused_tokens=usage.prefix_reused_tokens,
        device_graph_bytes=usage.device_graph_bytes,
    )


def _statistics(statistics: Statistics, since_unix_ns: int) -> cluster_pb2.Statistics:
    return cluster_pb2.Statistics(
        since_unix_ns=since_unix_ns,
        requests=statistics.requests,
        finished=statistics.finished,
        cancelled=statistics.cancelled,
        failed=statistics.failed,
        rejected=statistics.rejected,
        tokens=statistics.tokens,
        prompt_tokens=statistics.prompt_tokens,
        cached_tokens=statistics.cached_tokens,
        expected_cached_tokens=statistics.expected_cached_tokens,
        prefix_followed=statistics.prefix_followed.total(),
        prefix_passed_over=statistics.prefix_passed_over,
        recovered=statistics.recovered,
        routed_by_node=statistics.routed_by_node,
        placed_by_node=statistics.placed_by_node,
        evicted_by_node=statistics.evicted_by_node,
        handed_off=statistics.handed_off,
        recomputed=statistics.recomputed,
        stolen_batches=statistics.stolen_batches,
        stolen_sequences=statistics.stolen_sequences,
        hand_off_time_ns=statistics.hand_off_time_ns,
        import_time_ns=statistics.import_time_ns,
        imported_bytes=statistics.imported_bytes,
        fetched=statistics.fetched,
        fetch_time_ns=statistics.fetch_time_ns,
        fetched_bytes=statistics.fetched_bytes,
        fetch_interruptions=statistics.fetch_interruptions,
    )


def _links(state: State) -> list[cluster_pb2.KvLink]:
    return [
        cluster_pb2.KvLink(
            source_node_id=source,
            target_node_id=target,
            transport=cluster_pb2.KvTransport.Name(link.transport),
            transfers=link.transfers,
            interruptions=link.interruptions,
            bytes=link.num_bytes,
            time_ns=link.time_ns,
            bytes_per_s=round(link.bytes_per_s),
            device_obstacle=link.device_obstacle,
        )
        for source, target, link in state.links.used()
    ]


def _kv_moved(notice: KvMoved) -> cluster_pb2.KvMoved:
    return cluster_pb2.KvMoved(
        sequence_id=notice.sequence_id,
        model=notice.model,
        source_node_id=notice.source_node_id,
        engine_id=notice.engine_id,
        transport=cluster_pb2.KvTransport.Name(notice.transport),
        tokens=notice.tokens,
        bytes=notice.num_bytes,
        time_ns=notice.time_ns,
        interruptions=notice.interruptions,
    )


def _worker_changed(notice: WorkerChanged) -> cluster_pb2.WorkerChanged:
    return cluster_pb2.WorkerChanged(
        node_id=notice.node_id,
        worker_index=notice.worker_index,
        epoch=notice.epoch,
        change=cluster_pb2.WorkerChanged.Change.Name(notice.change),
        reason=notice.reason,
    )


def _replica_changed(notice: ReplicaChanged) -> cluster_pb2.ReplicaChanged:
    replica = model_pb2.Replica(
        node_id=notice.node_id,
        state=model_pb2.ReplicaState.Name(notice.state),
        active_requests=notice.active_requests,
        error=None if notice.error is None else to_detail(notice.error),
    )
    return cluster_pb2.ReplicaChanged(model=notice.model, replica=replica)


def _turn_changed(notice: TurnChanged) -> cluster_pb2.TurnChanged:
    return cluster_pb2.TurnChanged(
        engine_id=notice.engine_id,
        turn_id=notice.turn_id,
        model=notice.model,
        change=cluster_pb2.TurnChanged.Change.Name(notice.change),
        sequences=notice.sequences,
        quota_ns=notice.quota_ns,
        switch_time_ns=notice.switch_time_ns,
        elapsed_ns=notice.elapsed_ns,
        reason=notice.reason,
        stage=cluster_pb2.TurnStage.Name(notice.stage),
        expected_switch_time_ns=round(notice.expected_switch_ns),
        expected_step_time_ns=round(notice.expected_step_ns),
        steps=notice.steps,
    )


def _request_changed(notice: RequestChanged) -> cluster_pb2.RequestChanged:
    return cluster_pb2.RequestChanged(
        sequence_id=notice.sequence_id,
        label=notice.label,
        model=notice.model,
        engine_id=notice.engine_id,
        change=cluster_pb2.RequestChanged.Change.Name(notice.change),
        tokens=notice.tokens,
        error=None if notice.error is None else to_detail(notice.error),
        reason=notice.reason,
        prefix_pull=cluster_pb2.PrefixPull.Name(notice.pull),
        expected_cached_tokens=notice.expected_cached_tokens,
        cached_tokens=notice.cached_tokens,
    )
