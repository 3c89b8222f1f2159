"""The runtime snapshot as tables."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from aegaeon.v1 import cluster_pb2, model_pb2


def engine_table(snapshot: cluster_pb2.RuntimeSnapshot) -> Table:
    """A row per engine, with the memory of its worker."""
    table = _table("engine", "device", "role", "model now")
    names = (
        "sequences",
        "turns",
        "switches",
        "tokens",
        "weights",
        "KV",
        "free",
        "host KV",
        "cache",
    )
    for name in names:
        table.add_column(name, justify="right")
    workers = {f"{worker.node_id}/{worker.worker_index}": worker for worker in snapshot.workers}
    for engine in snapshot.engines:
        worker = workers.get(engine.engine_id, cluster_pb2.WorkerInfo())
        usage = worker.usage
        now = engine.current_model or "-"
        table.add_row(
            engine.engine_id,
            worker.device.name,
            word(cluster_pb2.EngineRole, engine.role),
            now if engine.ready else "(not connected)",
            *map(str, (engine.sequences, engine.turns, engine.switches, engine.tokens)),
            gigabytes(usage.device_weight_bytes),
            gigabytes(usage.device_kv_bytes),
            gigabytes(usage.device_free_bytes),
            gigabytes(usage.host_kv_bytes),
            gigabytes(usage.weight_cache_bytes),
        )
    return table


def model_table(snapshot: cluster_pb2.RuntimeSnapshot) -> Table:
    """A row per replica."""
    table = _table("model", "node", "state")
    for name in ("active", "context", "weights"):
        table.add_column(name, justify="right")
    for model in snapshot.models:
        for replica in model.replicas:
            table.add_row(
                model.spec.name,
                replica.node_id,
                word(model_pb2.ReplicaState, replica.state),
                str(replica.active_requests),
                str(model.facts.max_model_len or "?"),
                gigabytes(model.facts.packed_bytes),
            )
    return table


def word(kind: type[cluster_pb2.EngineRole] | type[model_pb2.ReplicaState], number: int) -> str:
    """A value of an enum, as a word; its number if it is of a newer scheduler."""
    if number not in kind.values():
        return str(number)
    return kind.Name(number).rpartition("_")[2].lower()


def gigabytes(size: int) -> str:
    """Bytes, for people."""
    return f"{size / 1e9:.2f} GB" if size >= 10**7 else f"{size / 1e6:.2f} MB"


def duration(seconds: float) -> str:
    """A time, for people."""
    minutes, whole = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole} s" if minutes else f"{whole} s"


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
