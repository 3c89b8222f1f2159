"""A worker's engine on a GPU, driven as a scheduler would, with the time of every event."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from aegaeon_worker.config import WorkerConfig
from aegaeon_worker.device.cuda import CudaDevice
from aegaeon_worker.device.interface import Device
from aegaeon_worker.engine import commands, events
from aegaeon_worker.engine.assembly import WorkerParts
from aegaeon_worker.engine.execution import Execution, choose_execution
from aegaeon_worker.engine.model_spec import ModelSpec
from aegaeon_worker.engine.prefill_pace import StepLimits
from aegaeon_worker.sampling.parameters import SamplingParameters

_TIMEOUT_S = 120.0
GIB = 1 << 30


@dataclass
class TurnLog:
    """What became of one turn; times are of ``perf_counter``, in seconds."""

    queued_s: float
    handles: list[int]
    started: events.TurnStarted | None = None
    started_s: float = 0.0
    steps: list[tuple[float, events.StepBatch]] = field(default_factory=list)
    ended: events.TurnEnded | None = None
    ended_s: float = 0.0

    @property
    def seconds(self) -> float:
        """From the moment it was queued to its end."""
        return self.ended_s - self.queued_s

    @property
    def first_token_s(self) -> float:
        """When the first token was told."""
        return next(when for when, step in self.steps if step.handles)

    def decode_ms(self, sequences: int) -> list[float]:
        """Times between steps in which so many sequences decode and nothing else happens."""
        pairs = itertools.pairwise(self.steps)
        return [
            (when - before) * 1e3
            for (before, last), (when, step) in pairs
            if last.decode_sequences == step.decode_sequences == sequences
            and not last.prefill_tokens
            and not step.prefill_tokens
        ]


class EngineDriver:
    """The whole engine without gRPC: memory, models, turns."""

    def __init__(
        self,
        folder: Path,
        pool_nbytes: int,
        *,
        limits: StepLimits | None = None,
        slabs: tuple[int, int] = (4, GIB),
        cache_nbytes: int = 40 * GIB,
    ) -> None:
        """``limits`` replace the device's own."""
        import torch

        free, _ = torch.cuda.mem_get_info()
        self._config = WorkerConfig(
            scheduler="unix:nowhere",  # never dialled: nothing here registers
            listen="unix:nowhere",
            node_id="gpu",
            worker_index=0,
            instance="benchmark",
            shm_dir=folder,
            cpu_num_slabs=slabs[0],
            cpu_slab_bytes=slabs[1],
            model_cache_bytes=cache_nbytes,
            device_memory_bytes=pool_nbytes,
            device="cuda:0",
            memory_utilization=min(1.0, pool_nbytes / free),
            keep_weights=True,
            prefix_caching=False,  # the same prompts are to be the same work
        )
        self._limits = limits
        self._numbers = itertools.count(1)
        self._news = threading.Condition()
        self._turns: dict[int, TurnLog] = {}
        self._owners: dict[int, TurnLog] = {}
        self.tokens: dict[int, list[int]] = {}
        self._loaded: dict[str, events.ModelLoaded] = {}
        self._failures: list[BaseException] = []

    def __enter__(self) -> Self:
        self.parts = WorkerParts(self._config, choose=self._choose)
        self.parts.start()
        self.parts.thread.submit(commands.Attach(self._take))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.parts.close()

    def load(self, path: Path, name: str) -> float:
        """Deploy a model; returns the seconds until it can run."""
        began = time.perf_counter()
        self.parts.thread.submit(commands.LoadModel(ModelSpec(name, path)))
        self._wait(lambda: name in self._loaded)
        return time.perf_counter() - began

    def queue(
        self,
        model: str,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        *,
        quota_ns: int = 0,
        prefetch: str | None = None,
        sampling: SamplingParameters | None = None,
    ) -> TurnLog:
        """Queue a turn of new sequences."""
        handles, specs = self._specs(model, prompts, new_tokens, sampling)
        self.parts.thread.submit(commands.AddSequences(specs))
        return self.queue_again(model, handles, quota_ns=quota_ns, prefetch=prefetch)

    def queue_again(
        self, model: str, handles: list[int], *, quota_ns: int = 0, prefetch: str | None = None
    ) -> TurnLog:
        """Queue another turn of sequences that exist."""
        turn_id = next(self._numbers)
        log = TurnLog(time.perf_counter(), handles)
        self._turns[turn_id] = log
        self.parts.thread.submit(
            commands.QueueTurn(turn_id, model, handles, quota_ns, prefetch or None)
        )
        return log

    def join(
        self,
        log: TurnLog,
        model: str,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        *,
        after_steps: int,
    ) -> list[int]:
        """Let new sequences join a running turn once it has made some steps."""
        self._wait(lambda: len(log.steps) >= after_steps, poll_s=0.001)
        turn_id = next(number for number, turn in self._turns.items() if turn is log)
        handles, specs = self._specs(model, prompts, new_tokens, None)
        self.parts.thread.submit(commands.AddSequences(specs))
        self.parts.thread.submit(commands.JoinTurn(turn_id, handles))
        return handles

    def wait_pinned(self) -> int:
        """Wait until nothing is being pinned or compiled; the bytes that are pinned."""
        while any(thread.name == "compiler" for thread in threading.enumerate()):
            time.sleep(0.01)
        device = self.parts.device
        assert isinstance(device, CudaDevice)
        return device.pins.wait()

    def cancel(self, handles: list[int]) -> None:
        """End sequences, wherever they are."""
        self.parts.thread.submit(commands.CancelSequences(handles))

    def unload(self, name: str) -> None:
        """Undeploy a model without sequences."""
        del self._loaded[name]
        self.parts.thread.submit(commands.UnloadModel(name))

    def finish(self, *logs: TurnLog) -> None:
        """Wait until turns have ended."""
        self._wait(lambda: all(log.ended is not None for log in logs))

    def run(
        self,
        model: str,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        *,
        sampling: SamplingParameters | None = None,
    ) -> TurnLog:
        """One turn from beginning to end."""
        log = self.queue(model, prompts, new_tokens, sampling=sampling)
        self.finish(log)
        return log

    def _specs(
        self,
        model: str,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        sampling: SamplingParameters | None,
    ) -> tuple[list[int], list[commands.SequenceSpec]]:
        handles = [next(self._numbers) for _ in prompts]
        stop = commands.StopConditions(new_tokens, 0, frozenset(), 1 << 30)
        specs = []
        for handle, prompt in zip(handles, prompts, strict=True):
            own = None if sampling is None else replace(sampling, seed=handle)
            specs.append(commands.SequenceSpec(handle, model, list(prompt), [], stop, None, own))
            self.tokens[handle] = []
        return handles, specs

    def _choose(self, device: Device) -> Execution:
        chosen = choose_execution(device)
        return chosen if self._limits is None else replace(chosen, limits=self._limits)

    def _wait(self, done: Callable[[], bool], poll_s: float = 1.0) -> None:
        def over() -> bool:
            return bool(self._failures) or self.parts.thread.failure is not None or done()

        with self._news:
            deadline = time.monotonic() + _TIMEOUT_S
            while not self._news.wait_for(over, poll_s):
                if time.monotonic() > deadline:
                    raise TimeoutError("the engine does not get on")
        if self.parts.thread.failure is not None:
            raise self.parts.thread.failure
        if self._failures:
            raise self._failures[0]

    def _take(self, event: events.Event) -> None:
        """On the engine's thread."""
        now = time.perf_counter()
        match event:
            case events.StepBatch() if event.turn_id:
                for handle, token in zip(event.handles, event.token_ids, strict=True):
                    self.tokens[handle].append(token)
                self._turns[event.turn_id].steps.append((now, event))
                return
            case events.TurnStarted():
                log = self._turns[event.turn_id]
                log.started, log.started_s = event, now
                return
            case events.TurnEnded():
                log = self._turns[event.turn_id]
                log.ended_s, log.ended = now, event
            case events.ModelLoaded():
                self._loaded[event.model.spec.name] = event
            case events.ModelFailed() | events.SequenceFailed():
                self._failures.append(event.error)
        with self._news:
            self._news.notify_all()
