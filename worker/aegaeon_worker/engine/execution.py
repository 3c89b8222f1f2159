"""How an engine runs steps on its device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from aegaeon_worker.device.interface import Device
from aegaeon_worker.engine.prefill_pace import StepLimits
from aegaeon_worker.models.interface import ServedModel


class Watch(Protocol):
    """Times the work that is issued between its making and ``stop``."""

    def stop(self) -> None:
        """The work has been issued."""

    def elapsed_ns(self) -> int:
        """How long the device had it; blocks until it is done."""


class GraphRecorder(Protocol):
    """Records work on the device, and keeps what recorded work of all models may share."""

    @property
    def nbytes(self) -> int:
        """Device memory that recordings hold, all models together."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Something that does ``work`` again, faster; ``work`` has run before.

        Every tensor that outlives ``work`` must have existed before. ``RuntimeError`` if it cannot
        be recorded.
        """

    def scratch(self, purpose: str, dtype: torch.dtype, shape: tuple[int, int]) -> torch.Tensor:
        """A tensor for what lives no longer than one step, or one turn.

        Whoever asks for the same again gets the same addresses, and so may others.
        """


CompileSteps = Callable[[ServedModel, int, Callable[[], bool]], None]
"""Compiles what a model's steps launch, in batches of so many at most, unless told to stop; on any
thread, and without the device."""


@dataclass(frozen=True)
class Execution:
    """One engine's way to run steps."""

    lookahead: int
    """Steps issued beyond the one whose tokens are being waited for. With 1, the device has its
    next step at hand when one ends; a sequence that stops has then been computed once too often."""
    limits: StepLimits
    watch: Callable[[], Watch]
    recorder: GraphRecorder | None
    """None: every step is launched kernel by kernel."""
    compile_steps: CompileSteps | None = None
    """None where nothing is compiled."""


class HostWatch:
    """A ``Watch`` for work that is done when it has been issued."""

    def __init__(self) -> None:
        self._start_ns = time.perf_counter_ns()
        self._stop_ns = self._start_ns

    def stop(self) -> None:
        """See ``Watch``."""
        self._stop_ns = time.perf_counter_ns()

    def elapsed_ns(self) -> int:
        """See ``Watch``."""
        return self._stop_ns - self._start_ns


def choose_execution(device: Device) -> Execution:
    """One step ahead with recorded steps on CUDA; step by step where the device is this CPU."""
    if device.torch_device.type == "cuda":
        from aegaeon_worker.engine.cuda_execution import cuda_execution

        return cuda_execution(device.torch_device)
    return Execution(0, StepLimits(), HostWatch, None)
