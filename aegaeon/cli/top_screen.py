"""What `aegaeon top` shows."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aegaeon.cli.rates import EngineRate, Rates
from aegaeon.cli.tables import duration
from aegaeon.v1 import cluster_pb2, model_pb2

_BAR_WIDTH = 16


def screen(rates: Rates) -> RenderableType:
    """A head line, engines, and the models that have requests, the busiest first."""
    now = rates.now
    up_s = (now.taken_unix_ns - now.started_unix_ns) / 1e9
    head = Text(
        f"up {duration(up_s)}   {now.active_requests} requests, {now.waiting_requests} wait for "
        f"their first token   {rates.tokens_per_s:.1f} tokens/s   "
        f"{rates.finished_per_s:.1f} finished/s   {now.statistics.failed} failed"
    )
    parts: list[RenderableType] = [head, _engines(rates)]
    if busy := _busy(now):
        parts.append(busy)
    return Group(*parts)


def _engines(rates: Rates) -> Table:
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for name in ("engine", "model now"):
        table.add_column(name, overflow="fold")
    for name in ("sequences", "tokens/s", "turns/s", "switches/s"):
        table.add_column(name, justify="right")
    table.add_column("device memory")
    table.add_column("weights, KV", justify="right")
    for engine in rates.engines:
        table.add_row(*_row(engine))
    return table


def _row(engine: EngineRate) -> list[RenderableType]:
    used = engine.weight_share + engine.kv_share
    return [
        engine.engine,
        (engine.model or "-") if engine.ready else "(not connected)",
        str(engine.sequences),
        f"{engine.tokens_per_s:.1f}",
        f"{engine.turns_per_s:.1f}",
        f"{engine.switches_per_s:.1f}",
        ProgressBar(total=1.0, completed=min(1.0, used), width=_BAR_WIDTH),
        f"{engine.weight_share:.0%}, {engine.kv_share:.0%}",
    ]


def _busy(now: cluster_pb2.RuntimeSnapshot) -> Table | None:
    counts = {
        model.spec.name: sum(replica.active_requests for replica in model.replicas)
        for model in now.models
    }
    states = {
        model.spec.name: [replica.state for replica in model.replicas] for model in now.models
    }
    loading = model_pb2.REPLICA_STATE_LOADING
    shown = [name for name, count in counts.items() if count or loading in states[name]]
    if not shown:
        return None
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("requests", justify="right")
    table.add_column("")
    for name in sorted(shown, key=lambda each: (-counts[each], each)):
        table.add_row(name, str(counts[name]), "loading" if loading in states[name] else "")
    return table
