"""What a worker tells Prometheus, against the events that it sends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest

from aegaeon.errors import EngineError, ModelLoadError
from aegaeon_worker.engine.events import (
    Event,
    FinishReason,
    LoadedModel,
    MemoryUsage,
    ModelFailed,
    ModelLoaded,
    SequenceFailed,
    StepBatch,
    TurnEnded,
    TurnEndReason,
    TurnStarted,
)
from aegaeon_worker.engine.model_spec import ModelFacts, ModelSpec
from aegaeon_worker.engine.status import EngineStatus
from aegaeon_worker.kv.fetches import Fetched
from aegaeon_worker.kv.hand_offs import HandedOff
from aegaeon_worker.kv.imports import Imported
from aegaeon_worker.kv.place import BlockRun, KvPlace
from aegaeon_worker.kv.prefix_use import PrefixUse
from aegaeon_worker.service.gpu_power import GpuPower
from aegaeon_worker.service.metrics import WorkerMetrics
from tests.metrics.scraping import parse

MODEL = LoadedModel(ModelSpec("m", Path("/m")), ModelFacts("f", 1, 1, 16, 10, 10, (2,)))
PREFIX = PrefixUse(queried_tokens=40, reused_tokens=32, device_bytes=7, host_bytes=8)
STATUS = EngineStatus(MemoryUsage(1, 2, 3, 4, 5, 6, PREFIX), (MODEL,), "m")


def told(*events: Event, power: GpuPower | None = None) -> dict[tuple[str, ...], float]:
    """Samples other than 0 after the events, without the engine's label."""
    metrics = WorkerMetrics(lambda: STATUS, "n/0", "cpu", power)
    for event in events:
        metrics.on_event(event)
    metrics.refresh()
    samples = parse(generate_latest(metrics.registry).decode())
    start = "aegaeon_worker_"
    return {
        (key[0].removeprefix(start), *(value for value in key[1:] if value != "n/0")): value
        for key, value in samples.items()
        if key[0].startswith(start) and value and not key[0].endswith(("_bucket", "_sum"))
    }


def counted(*events: Event) -> dict[tuple[str, ...], float]:
    """As `told`, without what holds before any event."""
    before = told()
    return {key: value for key, value in told(*events).items() if before.get(key) != value}


STEP = StepBatch(1, [5, 6], [7, 8], [FinishReason.NONE] * 2, 10**7, 30, 1, 40)
AWAY = StepBatch(0, [5], [0], [FinishReason.CANCELLED])
HIT = TurnStarted(1, False, 0, 0, 0, 2_000, 64)
MISS = TurnStarted(1, True, 10**7, 10**6, 1_000, 0, 0)
OUT = HandedOff(5, KvPlace(20, 100, (BlockRun(0, 1, 0, 2),)), 10)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (STEP, {("tokens_total", "prefill"): 30, ("tokens_total", "decode"): 1}),
        (HIT, {("weights_on_device_total", "hit"): 1, ("moved_bytes_total", "kv_swap"): 64}),
        (
            MISS,
            {
                ("weights_on_device_total", "miss"): 1,
                ("moved_bytes_total", "weights"): 1_000,
                ("copy_seconds_total", "weights"): 1e-3,
                ("switch_seconds_count",): 1,
            },
        ),
        (
            TurnEnded(1, TurnEndReason.QUOTA, 5, 3, recomputed_sequences=2),
            {("turns_total", "quota"): 1, ("recomputed_sequences_total",): 2},
        ),
        (SequenceFailed(5, EngineError("x")), {("sequence_failures_total", "engine_fault"): 1}),
        (ModelLoaded(MODEL, True, 10**9), {("weight_cache_total", "hit"): 1}),
        (ModelLoaded(MODEL, False, 10**9), {("weight_cache_total", "miss"): 1}),
        (ModelFailed("m", ModelLoadError("x")), {("weight_cache_total", "failed"): 1}),
        (OUT, {("moved_bytes_total", "kv_hand_off"): 200}),
        (Imported(5, 20, 200), {("kv_imports_total", "hit"): 1}),
        (Imported(5), {("kv_imports_total", "miss"): 1}),
        (Fetched(5, 20, 300), {("moved_bytes_total", "kv_fetch"): 300}),
    ],
)
def test_every_event_is_counted(event: Event, expected: dict[tuple[str, ...], float]) -> None:
    found = counted(event)
    assert {key: found.get(key) for key in expected} == expected


def test_ends_outside_of_turns_are_no_steps() -> None:
    assert counted(AWAY) == {}


def test_memory_is_what_the_engine_last_said() -> None:
    found = told()
    assert [found["device_memory_bytes", use] for use in ("weights", "kv", "free")] == [1, 2, 3]
    assert [found["host_memory_bytes", use] for use in ("kv_slabs", "weight_cache")] == [4, 5]
    assert (found["sequences",], found["loaded_models",], found["info", "cpu"]) == (6, 1, 1)
    assert [found["prefix_cache_bytes", place] for place in ("device", "host")] == [7, 8]
    assert ("gpu_power_watts",) not in found


def test_totals_that_the_engine_counts_are_taken_over_once() -> None:
    metrics = WorkerMetrics(lambda: STATUS, "n/0", "cpu", None)
    for _ in range(2):
        metrics.refresh()
    samples = parse(generate_latest(metrics.registry).decode())
    assert samples["aegaeon_worker_prefix_cache_queries_total", "n/0"] == 40
    assert samples["aegaeon_worker_prefix_cache_hits_total", "n/0"] == 32


def test_power_is_asked_of_the_sensor_and_nan_when_it_fails() -> None:
    class SensorError(Exception):
        pass

    def read(handle: str) -> int:
        if handle == "broken":
            raise SensorError
        return 350_250

    nvml = SimpleNamespace(nvmlDeviceGetPowerUsage=read, NVMLError=SensorError)
    assert told(power=GpuPower(nvml, "gpu"))["gpu_power_watts",] == 350.25
    broken = told(power=GpuPower(nvml, "broken"))["gpu_power_watts",]
    assert broken != broken
