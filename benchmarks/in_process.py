"""The worker's engine without its process: no scheduler, no gRPC."""

from __future__ import annotations

import itertools
import queue
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from aegaeon_worker.config import WorkerConfig
from aegaeon_worker.device.interface import Device
from aegaeon_worker.engine.assembly import WorkerParts
from aegaeon_worker.engine.commands import (
    AddSequences,
    Attach,
    LoadModel,
    QueueTurn,
    SequenceSpec,
    StopConditions,
)
from aegaeon_worker.engine.events import (
    Event,
    ModelFailed,
    ModelLoaded,
    SequenceFailed,
    StepBatch,
    TurnEnded,
)
from aegaeon_worker.engine.execution import Execution, choose_execution
from aegaeon_worker.engine.model_spec import ModelFacts, ModelSpec
from aegaeon_worker.sampling.parameters import SamplingParameters
from benchmarks.service import NodeSizes
from benchmarks.workload import Run

_TIMEOUT_S = 120.0


class InProcessEngine:
    """Drives an engine on its own thread in this process, with the commands that workers get."""

    def __init__(
        self,
        model_path: Path,
        sizes: NodeSizes,
        threads: int,
        choose: Callable[[Device], Execution] = choose_execution,
    ) -> None:
        """``choose`` as in ``WorkerParts``."""
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._folder = tempfile.TemporaryDirectory()
        self._parts = WorkerParts(_config(Path(self._folder.name), sizes, threads), choose=choose)
        self._parts.start()
        self._parts.thread.submit(Attach(self._events.put))
        self._model = ModelSpec("in-process", model_path)
        self._facts = self._load()

    def generate(
        self,
        prompts: list[list[int]],
        new_tokens: int,
        sampling: SamplingParameters | None = None,
        on_step: Callable[[StepBatch], None] = lambda _: None,
    ) -> Run:
        """One turn with all prompts; ``on_step`` is called with each of its steps."""
        start = time.perf_counter()
        stop = StopConditions(new_tokens, new_tokens, frozenset(), self._facts.max_model_len)
        handles = [next(self._numbers) for _ in prompts]
        sequences = [
            SequenceSpec(handle, self._model.name, prompt, [], stop, sampling=sampling)
            for handle, prompt in zip(handles, prompts, strict=True)
        ]
        self._parts.thread.submit(AddSequences(sequences))
        self._parts.thread.submit(QueueTurn(next(self._numbers), self._model.name, handles, 0))
        tokens = self._collect(handles, on_step)
        return Run(time.perf_counter() - start, [tokens[handle] for handle in handles])

    def close(self) -> None:
        """End the thread and remove the files."""
        self._parts.close()
        self._folder.cleanup()

    def _collect(
        self, handles: list[int], on_step: Callable[[StepBatch], None]
    ) -> dict[int, list[int]]:
        tokens: dict[int, list[int]] = {handle: [] for handle in handles}
        while True:
            match self._events.get(timeout=_TIMEOUT_S):
                case StepBatch() as step:
                    on_step(step)
                    for handle, token in zip(step.handles, step.token_ids, strict=True):
                        tokens[handle].append(token)
                case SequenceFailed() as failed:
                    raise failed.error
                case TurnEnded():
                    return tokens

    def _load(self) -> ModelFacts:
        self._parts.thread.submit(LoadModel(self._model))
        while True:
            match self._events.get(timeout=_TIMEOUT_S):
                case ModelLoaded() as loaded:
                    return loaded.model.facts
                case ModelFailed() as failed:
                    raise failed.error


def _config(folder: Path, sizes: NodeSizes, threads: int) -> WorkerConfig:
    return WorkerConfig(
        scheduler="unix:nowhere",  # never dialled: nothing here registers
        listen="unix:nowhere",
        node_id="in-process",
        worker_index=0,
        instance="benchmark",
        shm_dir=folder,
        cpu_num_slabs=sizes.cpu_num_slabs,
        cpu_slab_bytes=sizes.cpu_slab_bytes,
        model_cache_bytes=sizes.model_cache_bytes,
        device_memory_bytes=sizes.device_bytes,
        threads=threads,
    )
