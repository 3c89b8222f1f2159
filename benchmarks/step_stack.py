"""Engines on a steady device: alone in this process, and behind the daemons."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from aegaeon import LLMService, Request
from aegaeon.model_spec import ModelSpec
from benchmarks.in_process import InProcessEngine
from benchmarks.live_daemons import start_daemon, stop_daemon, wait_for_workers, worker_flags
from benchmarks.service import NodeSizes
from benchmarks.steady_device import DeviceStep, SteadyDevice, StepTimes

VOCAB_SIZE = 512
_MIB = 1 << 20
_SIZES = NodeSizes(512 * _MIB, 64 * _MIB, cpu_num_slabs=4, cpu_slab_bytes=16 * _MIB)
#: Small chunks, so that many small models fit.
_CHUNK_BYTES = 2 * _MIB
_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


class Side(Protocol):
    """Something that runs prompts on a steady device."""

    name: str
    processes: dict[str, int]
    """Process ids by what each of them is."""

    def generate(self, prompts: dict[str, list[list[int]]], count: int) -> list[list[int]]:
        """``count`` tokens for each of the prompts of each model, all at once."""

    def deploy(self) -> None:
        """Deploy another model, which nobody uses."""

    def close(self) -> tuple[int, list[DeviceStep]]:
        """End it; the engine's thread and every step of the device."""


def make_checkpoint(folder: Path, layers: int) -> Path:
    """A small model; what it computes does not matter."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", **_CONFIG, num_hidden_layers=layers)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    return folder


class BareSide:
    """The engine alone, in this process; it has one model."""

    name = "engine alone"

    def __init__(self, checkpoint: Path, times: StepTimes) -> None:
        self.processes = {"engine": os.getpid()}
        self._device = SteadyDevice(times)
        self._stack = ExitStack()
        self._stack.enter_context(self._device.computing())
        self._engine = InProcessEngine(checkpoint, _SIZES, 1, self._device.execution)
        self._stack.callback(self._engine.close)

    def generate(self, prompts: dict[str, list[list[int]]], count: int) -> list[list[int]]:
        """See `Side`."""
        (only,) = prompts.values()
        return self._engine.generate(only, count).tokens

    def deploy(self) -> None:
        """Nothing: it has one model."""

    def close(self) -> tuple[int, list[DeviceStep]]:
        """See `Side`."""
        self._stack.close()
        return self._device.thread_id, self._device.steps


class StackSide:
    """Client, scheduler and worker, each a process."""

    name = "whole stack"

    def __init__(self, checkpoint: Path, times: StepTimes, models: Sequence[str]) -> None:
        self._deep = checkpoint.with_name("deep")
        self._numbers = itertools.count()
        self._stack = ExitStack()
        with ExitStack() as stack:
            # Short, because sockets lie in it.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="steady")))
            self._file = folder / "steps.json"
            listen = ["--listen", f"unix:{folder}/s"]
            scheduler, address = start_daemon(
                stack, "scheduler", folder, "aegaeon_scheduler", listen
            )
            flags = worker_flags(f"unix:{folder}", address, 0, "simple", _SIZES)
            flags += ["--device-chunk-bytes", str(_CHUNK_BYTES)]
            flags += ["--step-us", str(times.decode_ns // 1000)]
            flags += ["--prompt-token-us", str(times.prompt_token_ns // 1000)]
            flags += ["--steps-file", str(self._file)]
            self._worker, _ = start_daemon(stack, "w0", folder, "benchmarks.steady_worker", flags)
            self._service = stack.enter_context(LLMService(address=address))
            self.processes = {
                "worker": self._worker.pid,
                "scheduler": scheduler.pid,
                "client": os.getpid(),
            }
            wait_for_workers(self._service, 1)
            for name in models:
                spec = ModelSpec(name, str(checkpoint))
                asyncio.run(self._service.deploy_model_replicas(spec))
            self._stack = stack.pop_all()

    def generate(self, prompts: dict[str, list[list[int]]], count: int) -> list[list[int]]:
        """See `Side`."""
        requests = [
            Request(name, 0.0, f"{name}-{number}", prompt, count, ignore_eos=True)
            for name, own in prompts.items()
            for number, prompt in enumerate(own)
        ]
        tokens = []
        for output in self._service.serve(requests):
            if isinstance(output, BaseException):
                raise output
            tokens.append([step.new_token_id for step in output])
        return tokens

    def deploy(self) -> None:
        """See `Side`."""
        spec = ModelSpec(f"deep{next(self._numbers)}", str(self._deep))
        asyncio.run(self._service.deploy_model_replicas(spec))

    def close(self) -> tuple[int, list[DeviceStep]]:
        """See `Side`."""
        with self._stack:
            self._service.close()
            stop_daemon(self._worker)
            log = json.loads(self._file.read_text())
        return int(log["thread"]), [DeviceStep(*step) for step in log["steps"]]


@contextmanager
def checkpoint() -> Iterator[Path]:
    """A small model that is gone afterwards; beside it is a deep one."""
    with tempfile.TemporaryDirectory(prefix="steady") as name:
        make_checkpoint(Path(name) / "deep", 36)
        yield make_checkpoint(Path(name) / "model", 2)
