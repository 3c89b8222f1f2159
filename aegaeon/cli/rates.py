"""What happened between two snapshots."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from aegaeon.v1 import cluster_pb2


@dataclass(frozen=True)
class EngineRate:
    """One engine."""

    engine: str
    ready: bool
    #: Empty when idle.
    model: str
    sequences: int
    tokens_per_s: float
    turns_per_s: float
    switches_per_s: float
    #: Of its device's pool, in use by weights and by KV; 0 when unknown.
    weight_share: float
    kv_share: float


class Rates:
    """Of the later snapshot's engines; counters that were reset in between count from zero."""

    def __init__(
        self, before: cluster_pb2.RuntimeSnapshot, now: cluster_pb2.RuntimeSnapshot
    ) -> None:
        self.now = now
        self.seconds = max(1e-9, (now.taken_unix_ns - before.taken_unix_ns) / 1e9)
        self._before = {engine.engine_id: engine for engine in before.engines}
        workers = {f"{w.node_id}/{w.worker_index}": w for w in now.workers}
        self.engines = [self._engine(engine, workers) for engine in now.engines]
        self.tokens_per_s = sum(engine.tokens_per_s for engine in self.engines)
        self.finished_per_s = self._rate(now.statistics.finished, before.statistics.finished)

    def plain(self) -> dict[str, Any]:
        """For programs."""
        return {
            "seconds": self.seconds,
            "active_requests": self.now.active_requests,
            "waiting_requests": self.now.waiting_requests,
            "tokens_per_s": self.tokens_per_s,
            "finished_per_s": self.finished_per_s,
            "engines": [asdict(engine) for engine in self.engines],
        }

    def _engine(
        self, engine: cluster_pb2.EngineInfo, workers: dict[str, cluster_pb2.WorkerInfo]
    ) -> EngineRate:
        before = self._before.get(engine.engine_id, cluster_pb2.EngineInfo())
        worker = workers.get(engine.engine_id, cluster_pb2.WorkerInfo())
        pool = worker.device.pool_bytes or 1
        return EngineRate(
            engine=engine.engine_id,
            ready=engine.ready,
            model=engine.current_model,
            sequences=engine.sequences,
            tokens_per_s=self._rate(engine.tokens, before.tokens),
            turns_per_s=self._rate(engine.turns, before.turns),
            switches_per_s=self._rate(engine.switches, before.switches),
            weight_share=worker.usage.device_weight_bytes / pool,
            kv_share=worker.usage.device_kv_bytes / pool,
        )

    def _rate(self, now: int, before: int) -> float:
        return (now - before if now >= before else now) / self.seconds
