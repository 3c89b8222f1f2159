"""How steps run on CUDA."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from aegaeon_worker.engine.compiling import compile_steps
from aegaeon_worker.engine.execution import Execution
from aegaeon_worker.engine.prefill_pace import StepLimits
from aegaeon_worker.models.interface import ServedModel

#: A pass over a prompt gains nothing from more tokens; as many take about 0.2 s with eight billion
#: parameters on an H200. Beside decoding sequences, 512 are what keeps the matrix units busy.
LIMITS = StepLimits(prefill_tokens=8192, mixed_prefill_tokens=512)


class CudaWatch:
    """A ``Watch`` by events in the stream of the work."""

    def __init__(self) -> None:
        self._start, self._stop = _event(), _event()
        self._start.record()

    def stop(self) -> None:
        """See ``Watch``."""
        self._stop.record()

    def elapsed_ns(self) -> int:
        """See ``Watch``."""
        self._stop.synchronize()
        return round(float(self._start.elapsed_time(self._stop)) * 1e6)


class CudaGraphs:
    """A ``GraphRecorder`` over CUDA graphs.

    All of them share one memory pool: they never run at once, and what they leave behind lies
    outside it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._scratch: dict[tuple[str, torch.dtype], list[torch.Tensor]] = {}
        self._graphs_nbytes = 0

    @property
    def nbytes(self) -> int:
        """See ``GraphRecorder``; intermediate results and scratch, by the allocator's books."""
        scratch = sum(t.nbytes for tensors in self._scratch.values() for t in tensors)
        return self._graphs_nbytes + scratch

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See ``GraphRecorder``."""
        before = torch.cuda.memory_reserved(self._device)
        graph = torch.cuda.CUDAGraph()
        compute = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(compute)
        with _no_collection(), torch.cuda.stream(self._stream):
            # Others than this thread may pin memory meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        compute.wait_stream(self._stream)
        self._graphs_nbytes += torch.cuda.memory_reserved(self._device) - before
        return graph.replay

    def scratch(self, purpose: str, dtype: torch.dtype, shape: tuple[int, int]) -> torch.Tensor:
        """See ``GraphRecorder``."""
        count = shape[0] * shape[1]
        tensors = self._scratch.setdefault((purpose, dtype), [])
        found = next((tensor for tensor in tensors if tensor.numel() >= count), None)
        if found is None:
            # Those there keep their addresses, which are recorded.
            found = torch.zeros(count, dtype=dtype, device=self._device)
            tensors.append(found)
        return found[:count].view(shape)


def cuda_execution(device: torch.device) -> Execution:
    """One step ahead, decode steps as graphs."""
    compile_here = partial(compile_on, device)
    return Execution(1, LIMITS, CudaWatch, CudaGraphs(device), compile_here)


def compile_on(
    device: torch.device, served: ServedModel, max_batch: int, stopped: Callable[[], bool]
) -> None:
    """See ``CompileSteps``."""
    with torch.cuda.device(device):
        compile_steps(served, LIMITS, max_batch, stopped)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collection, which may destroy graphs; that is not allowed meanwhile."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
