"""The worker's Prometheus metrics; docs/metrics.md says what each one means.

Counters follow the engine's events on their way to the scheduler, on the event loop and never on
the engine's thread: one step is one event. Gauges are set when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from aegaeon.metrics.registry import STEP_BUCKETS, new_registry
from aegaeon_worker.engine.events import (
    Event,
    ModelFailed,
    ModelLoaded,
    SequenceFailed,
    StepBatch,
    TurnEnded,
    TurnStarted,
)
from aegaeon_worker.engine.status import EngineStatus
from aegaeon_worker.kv.fetches import Fetched
from aegaeon_worker.kv.hand_offs import HandedOff
from aegaeon_worker.kv.imports import Imported
from aegaeon_worker.kv.prefix_use import PrefixUse
from aegaeon_worker.service.gpu_power import GpuPower

_LOAD_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class WorkerMetrics:
    """Told of every event that leaves; ``name`` is the worker's, ``node/index``."""

    def __init__(
        self, status: Callable[[], EngineStatus], name: str, device: str, power: GpuPower | None
    ) -> None:
        self._status, self._name, self._power = status, name, power
        self.registry: CollectorRegistry = new_registry()
        #: As last looked at: the engine counts these itself.
        self._prefix = PrefixUse()
        self._make_counters()
        self._make_histograms()
        self._make_gauges()
        self._gauge("info", "1; says what the worker is.", "device").labels(name, device).set(1)

    def on_event(self, event: Event) -> None:
        """An event on its way to the scheduler."""
        name = self._name
        match event:
            case StepBatch():
                if event.turn_id:
                    self._step_seconds.labels(name).observe(event.step_time_ns / 1e9)
                    self._tokens.labels(name, "prefill").inc(event.prefill_tokens)
                    self._tokens.labels(name, "decode").inc(event.decode_sequences)
            case TurnStarted():
                self._on_turn_started(event)
            case TurnEnded():
                self._turns.labels(name, event.reason.name.lower()).inc()
                self._recomputed.labels(name).inc(event.recomputed_sequences)
            case SequenceFailed():
                self._failures.labels(name, event.error.reason.name.lower()).inc()
            case ModelLoaded():
                self._loads.labels(name, "hit" if event.reused else "miss").inc()
                self._load_seconds.labels(name).observe(event.load_time_ns / 1e9)
            case ModelFailed():
                self._loads.labels(name, "failed").inc()
            case HandedOff():
                nbytes = event.place.block_nbytes * sum(run.num_blocks for run in event.place.runs)
                self._moved.labels(name, "kv_hand_off").inc(nbytes)
            case Fetched():
                self._moved.labels(name, "kv_fetch").inc(event.nbytes)
            case Imported():
                self._imports.labels(name, "hit" if event.num_tokens else "miss").inc()
                self._moved.labels(name, "kv_import").inc(event.nbytes)

    def refresh(self) -> None:
        """Set every gauge to what the engine last said of itself."""
        status, name = self._status(), self._name
        memory = status.memory
        for use, nbytes in (
            ("weights", memory.device_weight_bytes),
            ("kv", memory.device_kv_bytes),
            ("free", memory.device_free_bytes),
            ("graphs", memory.device_graph_bytes),
        ):
            self._device_memory.labels(name, use).set(nbytes)
        for use, nbytes in (
            ("kv_slabs", memory.host_kv_bytes),
            ("weight_cache", memory.weight_cache_bytes),
        ):
            self._host_memory.labels(name, use).set(nbytes)
        self._refresh_prefixes(memory.prefix)
        self._sequences.labels(name).set(memory.sequences)
        self._models.labels(name).set(len(status.models))
        if self._power is not None:
            self._watts.labels(name).set(self._power.watts())

    def _refresh_prefixes(self, use: PrefixUse) -> None:
        name, before, self._prefix = self._name, self._prefix, use
        if use.queried_tokens < before.queried_tokens:  # ranks that have formed a new engine
            before = PrefixUse()
        self._queries.labels(name).inc(use.queried_tokens - before.queried_tokens)
        self._hits.labels(name).inc(use.reused_tokens - before.reused_tokens)
        self._prefix_memory.labels(name, "device").set(use.device_bytes)
        self._prefix_memory.labels(name, "host").set(use.host_bytes)

    def _on_turn_started(self, event: TurnStarted) -> None:
        name = self._name
        self._activations.labels(name, "miss" if event.switched else "hit").inc()
        self._moved.labels(name, "weights").inc(event.weight_bytes)
        self._moved.labels(name, "kv_swap").inc(event.kv_bytes)
        self._copy_seconds.labels(name, "weights").inc(event.weight_copy_ns / 1e9)
        self._copy_seconds.labels(name, "kv_swap").inc(event.kv_swap_ns / 1e9)
        if event.switched:
            self._switch_seconds.labels(name).observe(event.switch_time_ns / 1e9)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        full = f"aegaeon_worker_{name}"
        return Counter(full, text, ["engine", *labels], registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        full = f"aegaeon_worker_{name}"
        return Gauge(full, text, ["engine", *labels], registry=self.registry)

    def _make_counters(self) -> None:
        self._tokens = self._counter("tokens", "Tokens computed.", "stage")
        self._turns = self._counter("turns", "Turns that ended.", "reason")
        self._recomputed = self._counter(
            "recomputed_sequences", "Sequences whose KV was given up for lack of memory."
        )
        self._failures = self._counter("sequence_failures", "Sequences that failed.", "code")
        self._loads = self._counter(
            "weight_cache", "Models asked for, by whether they were packed already.", "result"
        )
        self._activations = self._counter(
            "weights_on_device", "Turns, by whether the weights were on the device.", "result"
        )
        self._imports = self._counter(
            "kv_imports", "Sequences that came with KV, by whether it was still there.", "result"
        )
        self._queries = self._counter(
            "prefix_cache_queries", "Tokens looked up among KV of common beginnings."
        )
        self._hits = self._counter("prefix_cache_hits", "Of those, tokens that were found.")
        self._moved = self._counter("moved_bytes", "Bytes copied.", "kind")
        self._copy_seconds = self._counter(
            "copy_seconds", "Time that turns waited for copies.", "kind"
        )

    def _make_histograms(self) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            full = f"aegaeon_worker_{name}"
            return Histogram(full, text, ["engine"], buckets=buckets, registry=self.registry)

        self._step_seconds = histogram("step_seconds", "Engine steps.", STEP_BUCKETS)
        self._switch_seconds = histogram(
            "switch_seconds", "From the turn before to the first step.", STEP_BUCKETS
        )
        self._load_seconds = histogram("load_seconds", "Packing or finding models.", _LOAD_BUCKETS)

    def _make_gauges(self) -> None:
        self._device_memory = self._gauge(
            "device_memory_bytes", "The device's pool, and what graphs hold beside it.", "use"
        )
        self._host_memory = self._gauge("host_memory_bytes", "Shared memory in use.", "use")
        self._prefix_memory = self._gauge(
            "prefix_cache_bytes", "KV kept for common beginnings.", "place"
        )
        self._sequences = self._gauge("sequences", "Sequences that the worker knows.")
        self._models = self._gauge("loaded_models", "Models that can run.")
        if self._power is not None:
            self._watts = self._gauge("gpu_power_watts", "What the GPU draws, by NVML.")
