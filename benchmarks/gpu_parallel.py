"""Measure tensor parallelism over two GPUs against its floors: decode, prefill and switch."""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from transformers import PreTrainedConfig

from aegaeon_worker.parallel.collectives import Alone, Collectives
from aegaeon_worker.parallel.communicator import Communicator
from benchmarks.gpu_limits import copy_gbps, event_ms, product_tflops
from benchmarks.gpu_models import RandomModel, qwen3_config, random_tokens
from benchmarks.gpu_ranks import graph_us, on_gpus
from benchmarks.gpu_steps import DecodeRun, decode_steps
from benchmarks.machine import describe_command
from benchmarks.report import Figure, Report, Target

RANKS = 2
BATCHES = (1, 32, 128)
CONTEXT, STEPS, ROUNDS = 1024, 64, 3
PREFILL_TOKENS = 8192
#: Shares of a floor's speed, and speed-ups over one GPU, that must be reached.
OF_FLOOR, SPEED_UP, SWITCH = 75.0, 1.6, 0.55
MOST_ERROR = 0.02
_ONE_SHOT_NBYTES = 256 << 10
_SWITCH_NBYTES = 16_400_000_000


def decode_ms(model: RandomModel, batch: int) -> float:
    """Milliseconds per step, wall clock; every step's tokens are read while the next one runs."""
    steps = decode_steps(model, max_batch=batch, max_tokens=2048)
    tables = model.tables(batch, CONTEXT + (STEPS + 2) * ROUNDS + 8)
    torch.manual_seed(batch)  # the same tokens on all ranks
    run = DecodeRun(steps, random_tokens(batch, 1)[:, 0].tolist(), CONTEXT, tables)
    run.run(2)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run.run(STEPS)
        times.append((time.perf_counter() - start) / STEPS * 1e3)
    return statistics.median(times)


def prefill_ms(model: RandomModel) -> float:
    """Milliseconds of one pass over a prompt, on the GPU."""
    tables = model.tables(1, PREFILL_TOKENS)
    torch.manual_seed(7)
    step = model.chunk(random_tokens(1, PREFILL_TOKENS), tables)
    return statistics.median(event_ms(lambda: model.native.forward(step), 5))


def times_of(config: PreTrainedConfig, collectives: Collectives) -> dict[str, float]:
    """Decode steps and a prefill of one model, and its bytes on one GPU."""
    tokens = max(BATCHES) * (CONTEXT + (STEPS + 2) * ROUNDS + 32)
    model = RandomModel(config, kv_tokens=tokens, collectives=collectives)
    found = {f"decode {batch}": decode_ms(model, batch) for batch in BATCHES}
    found["prefill"] = prefill_ms(model)
    found["bytes"] = float(model.nbytes)
    found["token bytes"] = model.native.kv_shape.block_nbytes / 16
    return found


def sum_us(communicator: Communicator, rows: int, width: int) -> dict[str, float]:
    """One sum inside a graph: as the engine makes it, by NCCL, and by PyTorch's own kernel."""
    part = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    whole = communicator.sum(part.clone())
    own = communicator.sum_parts(part, part.dtype)
    if not torch.equal(own, whole):
        raise AssertionError(f"a sum of {rows} rows is off by {(own - whole).abs().max()}")
    found = {
        "own": graph_us(lambda: communicator.sum_parts(part, part.dtype)),
        "NCCL": graph_us(lambda: communicator.sum(part)),
    }
    if rows < PREFILL_TOKENS:
        found["PyTorch"] = graph_us(_symmetric_sum(part))
    return found


def _symmetric_sum(part: torch.Tensor) -> Callable[[], object]:
    memory = symmetric_memory.empty(part.numel(), dtype=part.dtype, device=part.device)
    group = dist.group.WORLD
    assert group is not None
    symmetric_memory.rendezvous(memory, group)
    memory.copy_(part.flatten())
    ops, name = torch.ops.symm_mem, group.group_name
    if part.nbytes <= _ONE_SHOT_NBYTES:
        return lambda: ops.one_shot_all_reduce(memory, "sum", name)
    return lambda: ops.two_shot_all_reduce_(memory, "sum", name)


def switch_ms(nbytes: int) -> float:
    """Copying weights from pinned host memory, as large as a switch copies them."""
    piece = 1 << 30
    source = torch.empty(piece, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def copy() -> None:
        for start in range(0, nbytes, piece):
            count = min(piece, nbytes - start)
            target[start : start + count].copy_(source[:count], non_blocking=True)

    return statistics.median(event_ms(copy, 3))


def accuracy(communicator: Communicator) -> dict[str, float]:
    """Ranks against one GPU with the same weights: relative error of logits, equal tokens."""
    config = qwen3_config("8B", layers=4)
    torch.manual_seed(3)  # the same weights and KV on all ranks
    whole = RandomModel(config, kv_tokens=4096)
    model = RandomModel(config, kv_tokens=4096, collectives=communicator)
    model.take_share(whole, communicator.ranks)
    torch.manual_seed(4)
    tokens, tables = random_tokens(4, 200), whole.tables(4, 256)
    logits = [m.native.forward(m.chunk(tokens, tables)) for m in (whole, model)]
    error = 0.0
    if communicator.ranks.rank == 0:
        error = float((logits[1] - logits[0]).norm() / logits[0].norm())
    runs = [
        DecodeRun(decode_steps(m, max_batch=4, max_tokens=256), tokens[:, 0].tolist(), 200, tables)
        for m in (whole, model)
    ]
    expected, chosen = (torch.tensor(run.run(8)) for run in runs)
    equal = float((expected == chosen).float().mean())
    shared = communicator.sum(chosen.float().cuda()).cpu()
    if not torch.equal(shared, chosen.float() * communicator.ranks.size):
        raise AssertionError("the ranks have chosen different tokens")
    if not error < MOST_ERROR:
        raise AssertionError(f"logits are off by {error}")
    return {"relative error": error, "equal tokens": equal}


def measure(communicator: Communicator) -> dict[str, dict[str, float]]:
    """Everything, on every rank; what concerns one GPU is measured by rank 0 while others wait."""
    first = communicator.ranks.rank == 0
    found: dict[str, dict[str, float]] = {}

    def note(name: str, work: Callable[[], dict[str, float]], *, alone: bool = False) -> None:
        if first or not alone:
            found[name] = work()
        if first:
            print(name, found[name], file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
        communicator.sum(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()

    note("accuracy", lambda: accuracy(communicator))
    note("limits", lambda: {"copy": copy_gbps(), "product": product_tflops()}, alone=True)
    for width in (4096, 5120):
        for rows in (*BATCHES, PREFILL_TOKENS):
            note(f"sum {rows} x {width}", partial(sum_us, communicator, rows, width))
    note("8B alone", lambda: times_of(qwen3_config("8B"), Alone()), alone=True)
    note("8B", lambda: times_of(qwen3_config("8B"), communicator))
    note("32B", lambda: times_of(qwen3_config("32B"), communicator))
    note("switch alone", lambda: {"ms": switch_ms(_SWITCH_NBYTES)}, alone=True)
    note("switch", lambda: {"ms": switch_ms(_SWITCH_NBYTES // RANKS)})
    return found


def floor_ms(
    found: dict[str, dict[str, float]], size: str, batch: int, layers: int, width: int
) -> float:
    """Reading a rank's weights and KV at the speed of a copy, and two sums per layer."""
    model, limits = found[size], found["limits"]
    embedding = 151_936 * width * 2 / RANKS
    kv = model["token bytes"] * (CONTEXT + STEPS * ROUNDS / 2) * batch
    memory = (model["bytes"] - embedding + kv) / limits["copy"] / 1e6
    return memory + (2 * layers + 1) * _fastest_us(found, batch, width) / 1e3


def prefill_floor_ms(
    found: dict[str, dict[str, float]], size: str, layers: int, width: int
) -> float:
    """The products of a rank's weights at the speed of a large product, and two sums per layer."""
    model, limits = found[size], found["limits"]
    weights = model["bytes"] / 2 - 2 * 151_936 * width / RANKS
    operations = 2 * weights * PREFILL_TOKENS
    sums = (2 * layers + 1) * _fastest_us(found, PREFILL_TOKENS, width) / 1e3
    return operations / limits["product"] / 1e9 + sums


def _fastest_us(found: dict[str, dict[str, float]], rows: int, width: int) -> float:
    return min(found[f"sum {rows} x {width}"].values())


def evaluate(found: dict[str, dict[str, float]]) -> tuple[list[Figure], list[Target]]:
    """Figures and what is required of them."""
    figures = [
        Figure(f"{name}: {key}", _unit(name, key), [value])
        for name, values in found.items()
        for key, value in values.items()
    ]
    targets = []
    for size, layers, width in (("8B", 36, 4096), ("32B", 64, 5120)):
        floors = {f"decode {b}": floor_ms(found, size, b, layers, width) for b in BATCHES}
        floors["prefill"] = prefill_floor_ms(found, size, layers, width)
        for what, floor in floors.items():
            figures.append(Figure(f"{size}: {what}: floor", "ms", [floor]))
            share = floor / found[size][what] * 100
            targets.append(
                Target(f"{size}: {what}: of the floor's speed", share, "%", OF_FLOOR, at_least=True)
            )
    ratio = found["8B alone"]["decode 128"] / found["8B"]["decode 128"]
    targets.append(Target("8B: decode 128: speed-up", ratio, "times", SPEED_UP, at_least=True))
    switch = found["switch"]["ms"] / found["switch alone"]["ms"]
    name = "switch of 16.4 GB: of the time with one GPU"
    targets.append(Target(name, switch, "times", SWITCH, at_least=False))
    return figures, targets


def _unit(name: str, key: str) -> str:
    if name.startswith("sum"):
        return "us"
    if name == "accuracy":
        return "of 1"
    return {"copy": "GB/s", "product": "TFLOP/s", "bytes": "B", "token bytes": "B"}.get(key, "ms")


def main() -> None:
    """Run all of it and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    figures, targets = evaluate(on_gpus(RANKS, measure))
    report = Report(
        title="Tensor parallelism over two GPUs",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.gpu_parallel"),
        machine={"GPU": f"{RANKS} x {torch.cuda.get_device_name()}"},
        versions={name: version(name) for name in ("torch", "triton", "transformers")},
        settings={"models": "shapes of Qwen3, random weights, bfloat16", "context": str(CONTEXT)},
        figures=figures,
        targets=targets,
    )
    report.write(options.out, "gpu-parallel")
    print(report.markdown())


if __name__ == "__main__":
    main()
