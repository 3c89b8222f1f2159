"""One process per GPU that measure together."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as multiprocessing

from aegaeon_worker.parallel.communicator import Communicator
from aegaeon_worker.parallel.ranks import Ranks

_TIMEOUT_S = 300.0

RankWork = Callable[[Communicator], Any]


def on_gpus(size: int, work: RankWork) -> Any:
    """What ``work`` returns on rank 0 of ``size`` processes, one per GPU."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        ranks = [
            context.Process(target=_run, args=(Ranks(rank, size), meeting, work, results))
            for rank in range(size)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        failed = [rank.exitcode for rank in ranks if rank.exitcode]
        if failed:
            raise RuntimeError(f"ranks ended with {failed}")
    return results.get()


def _run(ranks: Ranks, meeting: Path, work: RankWork, results: Any) -> None:
    device = torch.device("cuda", ranks.rank)
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    communicator = Communicator(ranks, device, _TIMEOUT_S)
    communicator.connect(meeting)
    try:
        found = work(communicator)
    finally:
        torch.cuda.synchronize()
        communicator.disconnect()
    if ranks.rank == 0:
        results.put(found)


def graph_us(work: Callable[[], object], repeats: int = 50, rounds: int = 7) -> float:
    """Time of ``work`` inside a CUDA graph of ``repeats`` of them, in microseconds."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(repeats):
            work()
    times: list[float] = []
    for _ in range(rounds):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / repeats)
    return statistics.median(times[2:])
