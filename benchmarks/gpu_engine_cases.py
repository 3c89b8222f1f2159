"""What a GPU engine does for its users, case by case; every case also checks what came out."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch

from aegaeon.model_spec import ModelSpec
from aegaeon_worker.engine.prefill_pace import StepLimits
from aegaeon_worker.sampling.parameters import SamplingParameters
from benchmarks.gpu_driver import GIB, EngineDriver, TurnLog
from benchmarks.gpu_models import RandomModel, qwen3_config, random_tokens
from benchmarks.gpu_node import resident_nbytes
from benchmarks.gpu_steps import DecodeRun, decode_steps
from benchmarks.live_daemons import wait_for_workers
from benchmarks.report import Figure
from benchmarks.service import NodeSizes, WholeStack, start_service

VOCAB = 151936
CONTEXT, STEPS = 1024, 128
ROUNDS = 3
#: Prompts of a large batch are to be through before the first of them has ended.
WHOLE_PROMPTS = StepLimits(prefill_tokens=8192, mixed_prefill_tokens=8192)


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Random token ids, the same for the same seed."""
    rng = random.Random(f"{count} {length} {seed}")
    return [[rng.randrange(3, VOCAB) for _ in range(length)] for _ in range(count)]


def replays(size: str, batches: Sequence[int]) -> list[Figure]:
    """Recorded decode steps back to back, half way through what ``decode`` measures."""
    largest = max(batches)
    model = RandomModel(qwen3_config(size), kv_tokens=largest * (CONTEXT + STEPS + 16))
    steps = decode_steps(model, max_batch=largest, max_tokens=40960)
    figures = []
    for batch in batches:
        tables = model.tables(batch, CONTEXT + STEPS)
        tokens = random_tokens(batch, 1)[:, 0].tolist()
        run = DecodeRun(steps, tokens, CONTEXT, tables)
        run.run(STEPS // 2)
        name = f"{size}: recorded step, batch {batch}"
        figures.append(Figure(name, "ms", [run.replay_ms(40)]))
    return figures


def decode(driver: EngineDriver, model: str, size: str, batches: Sequence[int]) -> list[Figure]:
    """Whole batches through the engine: per token from the first to the last one, prompts and all;
    and between the events of two steps in which all sequences decode."""
    figures = []
    for batch in batches:
        driver.run(model, prompts(batch, CONTEXT, 0), batch // 8 + 8)  # records what is replayed
        tokens, steps, devices = [], [], []
        for seed in range(ROUNDS):
            first = driver.run(model, prompts(batch, CONTEXT, seed + 1), 1)
            log = driver.run(model, prompts(batch, CONTEXT, seed + 11), STEPS + 1)
            tokens.append((log.seconds - first.seconds) / STEPS * 1e3)
            steps.append(statistics.mean(log.decode_ms(batch)))
            devices.append(device_ms(log, batch))
        figures.append(Figure(f"{size}: decode, batch {batch}", "ms", tokens))
        figures.append(Figure(f"{size}: decode step, batch {batch}", "ms", steps))
        figures.append(Figure(f"{size}: decode step, batch {batch}, on the device", "ms", devices))
    return figures


def device_ms(log: TurnLog, batch: int) -> float:
    """Mean time of decode steps by the events of the device."""
    return statistics.mean(
        step.step_time_ns / 1e6
        for _, step in log.steps
        if step.decode_sequences == batch and not step.prefill_tokens
    )


def sampled(driver: EngineDriver, model: str, size: str, batch: int) -> list[Figure]:
    """The same with tokens drawn, and with a share of the vocabulary cut off."""
    kinds = {
        "temperature": SamplingParameters(temperature=0.8),
        "temperature, top-p, top-k": SamplingParameters(temperature=0.8, top_p=0.95, top_k=50),
        "temperature, frequency penalty": SamplingParameters(
            temperature=0.8, frequency_penalty=0.2
        ),
    }
    figures = []
    for name, kind in kinds.items():
        extra = batch // 8 + 4
        # As long, so that all decode together in some steps: these are recorded, and then replayed.
        driver.run(model, prompts(batch, CONTEXT, 0), STEPS + extra, sampling=kind)
        log = driver.run(model, prompts(batch, CONTEXT, 1), STEPS + extra, sampling=kind)
        times = log.decode_ms(batch)
        figures.append(
            Figure(f"{size}: decode step, batch {batch}, {name}", "ms", [statistics.mean(times)])
        )
    return figures


def prefill(driver: EngineDriver, model: str, size: str) -> list[Figure]:
    """Until the first token of every prompt is told, from the moment the turn is queued."""
    figures = []
    for count, length in ((1, 512), (1, 1024), (1, 7680), (64, 1024)):
        times = []
        for seed in range(ROUNDS + 1):
            log = driver.run(model, prompts(count, length, seed), 1)
            times.append((log.steps[-1][0] - log.queued_s) * 1e3)
        name = f"{size}: prefill of {count} x {length}"
        if count > 1:
            rates = [count * length / ms * 1e3 for ms in times[1:]]
            figures.append(Figure(name, "tokens/s", rates))
        else:
            figures.append(Figure(name, "ms", times[1:]))
    return figures


def mixed(driver: EngineDriver, model: str, size: str) -> list[Figure]:
    """Decoding sequences while prompts come in beside them: the longest time between tokens."""
    longest = []
    for seed in range(ROUNDS):
        batch = driver.queue(model, prompts(32, CONTEXT, seed), 400)
        driver.join(batch, model, prompts(8, 2048, seed), 8, after_steps=100)
        driver.finish(batch)
        gaps = [
            (when - before) * 1e3
            for (before, _), (when, step) in pairwise(batch.steps[8:])
            if step.decode_sequences >= 32
        ]
        longest.append(max(gaps))
    return [Figure(f"{size}: longest step of 32 with 8 x 2048 tokens beside", "ms", longest)]


def resident_switches(driver: EngineDriver, models: tuple[str, str], size: str) -> list[Figure]:
    """Two models with weights and sequences on the device take turns of some steps."""
    a, b = models
    for model in models:
        driver.run(model, prompts(8, CONTEXT, 0), 12)
    handles = {}
    for model in models:
        log = driver.queue(model, prompts(8, CONTEXT, 5), 400, quota_ns=1)
        driver.finish(log)
        handles[model] = log.handles
    logs = [
        driver.queue_again((a, b)[turn % 2], handles[(a, b)[turn % 2]], quota_ns=60_000_000)
        for turn in range(20)
    ]
    driver.finish(*logs)
    for members in handles.values():
        driver.cancel(members)
    switches, firsts = [], []
    for before, after in pairwise(logs[3:]):
        assert after.started is not None
        assert not after.started.switched
        switches.append(after.started.switch_time_ns / 1e6)
        step = after.steps[0]
        firsts.append((step[0] - before.steps[-1][0]) * 1e3 - step[1].step_time_ns / 1e6)
    return [
        Figure(f"{size}: switch to a resident model, until its first step", "ms", switches),
        Figure(
            f"{size}: switch to a resident model, last token to first less a step", "ms", firsts
        ),
    ]


def prefetched_switch(driver: EngineDriver, a: str, b: str, path: Path, size: str) -> list[Figure]:
    """One model decodes while the other one's weights are fetched; then they switch."""
    alone, beside, switches = [], [], []
    for _ in range(ROUNDS):
        driver.unload(b)
        driver.load(path, b)
        log = driver.run(a, prompts(8, CONTEXT, 1), 140)
        alone.append(statistics.median(log.decode_ms(8)))
        first = driver.queue(a, prompts(8, CONTEXT, 2), 140, prefetch=b)
        second = driver.queue(b, prompts(1, 512, 3), 2)
        driver.finish(first, second)
        fetching = first.decode_ms(8)[:50]
        beside.append(statistics.median(fetching))
        assert second.started is not None
        assert second.started.weight_bytes == 0, "the prefetch was not complete"
        switches.append(second.started.switch_time_ns / 1e6)
    return [
        Figure(f"{size}: decode step, batch 8, alone", "ms", alone),
        Figure(f"{size}: decode step, batch 8, beside a prefetch", "ms", beside),
        Figure(f"{size}: switch to a prefetched model, until its first step", "ms", switches),
    ]


def cold_switches(folder: Path, path: Path, nbytes: int) -> list[Figure]:
    """Two models that do not fit together answer a prompt of 512 tokens in turns."""
    firsts, starts = [], []
    with EngineDriver(folder, nbytes + 6 * GIB) as driver:
        names = ("8B", "8B again")
        deployed = [driver.load(path, name) for name in names]
        assert driver.wait_pinned() > 2 * nbytes, "host memory could not be pinned"
        expected: dict[int, list[int]] = {}
        for number in range(2 * ROUNDS + 2):
            log = driver.run(names[number % 2], prompts(1, 512, 0), 2)
            assert log.started is not None
            assert log.started.weight_bytes >= nbytes
            # Both are the same weights.
            tokens = expected.setdefault(0, driver.tokens[log.handles[0]])
            assert driver.tokens[log.handles[0]] == tokens
            if number > 1:
                firsts.append((log.first_token_s - log.queued_s) * 1e3)
                starts.append(log.started.switch_time_ns / 1e6)
    return [
        Figure("8B: deploy of a model in the host cache", "s", deployed),
        Figure("8B: cold switch to the first token of 512", "ms", firsts),
        Figure("8B: of that, until the first step is issued", "ms", starts),
    ]


def cycles(folder: Path, paths: Sequence[Path], pool_nbytes: int, count: int) -> list[Figure]:
    """Models that do not fit together go on with their sequences, turn by turn."""
    names = [path.name for path in paths]
    free, resident, switches = [], [], []
    with EngineDriver(folder, pool_nbytes) as driver:
        for path in paths:
            driver.load(path, path.name)
        driver.wait_pinned()
        steps = count + 8
        quiet = {name: driver.run(name, prompts(4, 300, 1), steps) for name in names}
        logs = {name: driver.queue(name, prompts(4, 300, 1), steps, quota_ns=1) for name in names}
        driver.finish(*logs.values())
        for number in range(2 * count):
            if all(len(driver.tokens[h]) == steps for log in logs.values() for h in log.handles):
                break
            turns = [driver.queue_again(name, logs[name].handles, quota_ns=1) for name in names]
            driver.finish(*turns)
            switches += [turn.started.weight_bytes > 0 for turn in turns if turn.started]
            if number % 10 == 0:
                free.append(torch.cuda.mem_get_info()[0] / 2**20)
                resident.append(resident_nbytes() / 2**20)
        for name in names:
            for before, after in zip(quiet[name].handles, logs[name].handles, strict=True):
                assert driver.tokens[before] == driver.tokens[after], f"{name} differs"
    assert sum(switches) > count, "the models fit together"
    settled = len(free) // 4
    return [
        Figure("cycles: switches that copied weights", "", [float(sum(switches))]),
        Figure("cycles: free device memory", "MiB", free[settled:]),
        Figure("cycles: process memory", "MiB", resident[settled:]),
    ]


def starts() -> list[Figure]:
    """Scheduler and worker as processes, until the worker is registered; the second is warm."""
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        service = start_service([], NodeSizes(GIB, 24 * GIB, cpu_num_slabs=4, cpu_slab_bytes=GIB))
        try:
            wait_for_workers(service, 1)
            seconds.append(time.perf_counter() - began)
        finally:
            service.close()
    return [Figure("start of scheduler and worker, warm, until registered", "s", seconds[1:])]


def whole_stack(path: Path) -> list[Figure]:
    """Client, scheduler and worker as processes: start, first answer, and decoding of a batch."""
    model = ModelSpec("8B", str(path))
    began = time.perf_counter()
    service = start_service([model], NodeSizes(GIB, 24 * GIB, cpu_num_slabs=4, cpu_slab_bytes=GIB))
    try:
        started = time.perf_counter() - began
        stack = WholeStack(service, model)
        stack.generate(prompts(1, 512, 0), 1)
        first = time.perf_counter() - began
        # With all sizes of batches that follow: each is recorded when it is met the second time.
        stack.generate(prompts(32, CONTEXT, 1), STEPS + 1)
        steps = stack.step_ms(prompts(32, CONTEXT, 2), STEPS + 1)
        longer = stack.generate(prompts(32, CONTEXT, 4), STEPS + 1).seconds
        shorter = stack.generate(prompts(32, CONTEXT, 3), 1).seconds
        single = [stack.generate(prompts(1, CONTEXT, 5 + n), 1).seconds for n in range(ROUNDS)]
    finally:
        service.close()
    step = (longer - shorter) / STEPS * 1e3
    return [
        Figure("whole stack: start, with a new 8B model packed and deployed", "s", [started]),
        Figure("whole stack: until the first answer of a new 8B model", "s", [first]),
        Figure("whole stack, 8B: decode step, batch 32", "ms", steps),
        Figure("whole stack, 8B: per token of 32 prompts, their mixing included", "ms", [step]),
        Figure("whole stack, 8B: answer of one token to 1024", "ms", [s * 1e3 for s in single]),
    ]
