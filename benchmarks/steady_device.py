"""A device on which every step takes a given time, and no processor: what a GPU is to its host.

Issuing a step returns at once. The step begins when the one before has ended, takes its time while
this process may do something else, and only then its tokens are there. Everything around it is the
worker's own, so what the device idles between two steps is what the host was late by. The tokens
are a function of the token before and its position, which tells whether one was lost or mistaken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch

from aegaeon_worker.device.interface import Device
from aegaeon_worker.engine.cuda_execution import LIMITS
from aegaeon_worker.engine.execution import Execution
from aegaeon_worker.models.interface import DecodeRows, StepInput
from aegaeon_worker.models.native.model import NativeModel

#: Ids from here on are tokens; those below may end a sequence.
_FIRST_TOKEN = 3


class DeviceStep(NamedTuple):
    """One step as the device saw it; times of the monotonic clock, in ns."""

    began_ns: int
    ended_ns: int
    decoding: int
    """Sequences of a step in which each adds one token; 0 for one with parts of prompts."""
    model: int
    """Which model it was of, by the order in which they were met."""


@dataclass(frozen=True)
class StepTimes:
    """What steps take, in ns."""

    decode_ns: int
    prompt_token_ns: int = 0
    """Of every token in a step with parts of prompts, on top."""


class SteadyDevice:
    """The queue of one device's steps, and the log of them."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._free_ns = 0
        self._work: tuple[int, int, int] | None = None
        self._models: dict[int, int] = {}
        self.steps: list[DeviceStep] = []
        #: Of the thread that issues steps.
        self.thread_id = 0

    def execution(self, device: Device) -> Execution:
        """One step ahead, decode steps recorded, as on CUDA."""
        return Execution(1, LIMITS, lambda: SteadyWatch(self), SteadyRecorder())

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Native models of this process compute here meanwhile."""
        forward, step = NativeModel.forward, NativeModel.decode_step
        device = self

        def decode_step(model: NativeModel) -> object:
            return lambda rows: device._decode(model, rows)

        def compute(self: NativeModel, step: StepInput) -> torch.Tensor:
            return device._forward(self, step)

        NativeModel.forward = compute  # type: ignore[method-assign]
        NativeModel.decode_step = property(decode_step)  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            NativeModel.forward = forward  # type: ignore[method-assign]
            NativeModel.decode_step = step  # type: ignore[method-assign]

    def begin(self) -> DeviceStep | None:
        """Queue what has been issued behind the steps before; None when there is nothing."""
        if self._work is None:
            return None
        (duration_ns, decoding, model), self._work = self._work, None
        began_ns = max(time.monotonic_ns(), self._free_ns)
        self._free_ns = began_ns + duration_ns
        self.steps.append(DeviceStep(began_ns, self._free_ns, decoding, model))
        return self.steps[-1]

    def _forward(self, model: NativeModel, step: StepInput) -> torch.Tensor:
        rows = step.logit_rows
        tokens = next_token(step.token_ids[rows], step.positions[rows], model.vocab_size)
        tokens_ns = self._times.prompt_token_ns * len(step.token_ids)
        self._launch(model, self._times.decode_ns + tokens_ns, 0)
        logits = torch.zeros(len(rows), model.vocab_size)
        logits[torch.arange(len(rows)), tokens] = 1.0
        return logits

    def _decode(self, model: NativeModel, rows: DecodeRows) -> None:
        known, sources, positions, _ = rows.staged
        before = torch.where(sources >= 0, rows.tokens[sources.clamp(min=0)], known)
        tokens = next_token(before, positions, model.vocab_size)
        self._launch(model, self._times.decode_ns, int((positions >= 0).sum()))
        if rows.logits is not None:
            rows.logits.zero_()[torch.arange(len(tokens)), tokens] = 1.0
            return
        rows.tokens[: len(tokens)] = tokens
        rows.found[:, 0] = tokens
        rows.found[:, 1] = 1.0

    def _launch(self, model: NativeModel, duration_ns: int, decoding: int) -> None:
        number = self._models.setdefault(id(model), len(self._models))
        self._work = duration_ns, decoding, number
        self.thread_id = threading.get_native_id()
        # As a launch does, let other threads of Python go on.
        time.sleep(0)


class SteadyRecorder:
    """A ``GraphRecorder`` for work that is as fast when it is done again."""

    def __init__(self) -> None:
        self._scratch: dict[str, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        """See ``GraphRecorder``."""
        return sum(tensor.nbytes for tensor in self._scratch.values())

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See ``GraphRecorder``."""
        return work

    def scratch(self, purpose: str, dtype: torch.dtype, shape: tuple[int, int]) -> torch.Tensor:
        """See ``GraphRecorder``."""
        count = shape[0] * shape[1]
        found = self._scratch.get(purpose)
        if found is None or found.numel() < count:
            found = self._scratch[purpose] = torch.zeros(count, dtype=dtype)
        return found[:count].view(shape)


class SteadyWatch:
    """A ``Watch`` of one step, which ends when the device says so."""

    def __init__(self, device: SteadyDevice) -> None:
        self._device = device
        self._step: DeviceStep | None = None

    def stop(self) -> None:
        """See ``Watch``."""
        self._step = self._device.begin()

    def elapsed_ns(self) -> int:
        """See ``Watch``."""
        if self._step is None:
            return 0
        left_ns = self._step.ended_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)
        return self._step.ended_ns - self._step.began_ns


Ids = TypeVar("Ids", int, torch.Tensor)


def next_token(token: Ids, position: Ids, vocab_size: int) -> Ids:
    """What follows ``token`` at ``position``."""
    return (token * 31 + position * 7) % (vocab_size - _FIRST_TOKEN) + _FIRST_TOKEN


def expected_tokens(prompt: list[int], count: int, vocab_size: int) -> list[int]:
    """The ``count`` tokens that follow a prompt."""
    tokens = list(prompt)
    for position in range(len(prompt) - 1, len(prompt) + count - 1):
        tokens.append(next_token(tokens[-1], position, vocab_size))
    return tokens[len(prompt) :]
