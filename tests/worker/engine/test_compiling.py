"""What is compiled beforehand is what steps launch."""

from __future__ import annotations

import importlib
import pkgutil
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aegaeon_worker import kernels
from aegaeon_worker.engine.compiling import compile_steps
from aegaeon_worker.engine.execution import Execution, HostWatch
from aegaeon_worker.engine.prefill_pace import StepLimits
from aegaeon_worker.kernels.launch import launch
from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.models.interface import DecodeRows, ServedModel
from aegaeon_worker.models.native.model import NativeModel
from aegaeon_worker.models.native.triton_backend import TritonBackend
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.pace import PlainRecorder
from tests.worker.models.paged_runner import PagedRunner
from tests.worker.models.tiny import make_checkpoint

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the runner is on the CPU")

MAX_BATCH = 16
Launch = Callable[..., None]


def kind(kernel: Any, arguments: tuple[object, ...], options: dict[str, object]) -> str:
    """What Triton compiles a kernel anew for."""
    return f"{kernel.__name__} {[special(a) for a in arguments]} {sorted(options.items())}"


def special(argument: object) -> str:
    if isinstance(argument, torch.Tensor):
        return f"{argument.dtype} {argument.data_ptr() % 16 == 0}"
    if isinstance(argument, int):
        return f"int {argument == 1} {argument % 16 == 0} {argument.bit_length() > 31}"
    return type(argument).__name__


@contextmanager
def launches(call: Launch) -> Iterator[set[str]]:
    """Kinds of kernels that are launched meanwhile, each by ``call``."""
    seen: set[str] = set()

    def record(kernel: Any, grid: tuple[int, ...], *arguments: object, **options: object) -> None:
        seen.add(kind(kernel, arguments, options))
        call(kernel, grid, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        for module in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
            loaded = importlib.import_module(module.name)
            if module.name != launch.__module__ and hasattr(loaded, "launch"):
                patch.setattr(loaded, "launch", record)
        yield seen


def launch_ids(kernel: Any, grid: tuple[int, ...], *arguments: object, **options: object) -> None:
    """Only what tokens are looked up by: the interpreter is slow, and values do not matter."""
    if kernel.__name__ == "_inputs_kernel":
        launch(kernel, grid, *arguments, **options)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "mistral"])
def test_steps_launch_nothing_that_was_not_compiled(tmp_path: Path, family: str) -> None:
    make_checkpoint(family, tmp_path, num_hidden_layers=3)
    runner = PagedRunner(tmp_path, packed_for="cuda")
    assert isinstance(runner.model, NativeModel)
    runner.model.backend = TritonBackend(runner.model._plan.attention, torch.device("cpu"))
    limits = StepLimits(512, 64)
    with launches(lambda *arguments, **options: None) as compiled:
        compile_steps(runner.model, limits, MAX_BATCH, lambda: False)
    with launches(launch_ids) as launched:
        runner.step({0: list(range(40))})
        runner.step({1: [5], 2: [7]})
        runner.step({0: [3], 1: [4], 2: [9], 3: list(range(64))})
        runner.step({4: list(range(48))})
        for size in (1, 2, 8, MAX_BATCH):
            decode(runner, size)
    assert launched
    assert launched <= compiled
    sampling = ("_penalize_kernel", "_chunk_kernel", "_floors_kernel", "_draw_kernel")
    names = {kind.split()[0] for kind in compiled}
    assert names >= set(sampling)


def decode(runner: PagedRunner, size: int) -> None:
    step = runner.model.decode_step
    assert step is not None
    width = KvShape.blocks_for(runner.model.max_model_len)
    rows = DecodeRows(
        staged=torch.tensor([[0], [-1], [-1], [-1]]).repeat(1, size),
        tokens=torch.zeros(MAX_BATCH, dtype=torch.int64),
        found=torch.empty(size, 2, dtype=torch.float64),
        block_tables=torch.zeros(size, width, dtype=torch.int64),
        kv=runner.kv,
        logits=None,
    )
    step(rows)


def test_what_has_no_storage_is_compiled_and_not_launched() -> None:
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = []

    class Kernel:
        def warmup(self, *arguments: object, **options: object) -> None:
            calls.append((arguments, options))

    tensor = torch.empty(4, device="meta")
    launch(Kernel(), (3,), tensor, 5, BLOCK=16, num_warps=1)
    assert calls == [((tensor, 5), {"grid": (3,), "BLOCK": 16, "num_warps": 1, "PDL": False})]


def test_a_stopped_compiler_does_no_more(tmp_path: Path) -> None:
    make_checkpoint("qwen3", tmp_path)
    runner = PagedRunner(tmp_path, packed_for="cuda")
    with launches(lambda *arguments, **options: None) as compiled:
        compile_steps(runner.model, StepLimits(), MAX_BATCH, lambda: True)
    assert compiled == set()


def test_a_model_is_compiled_behind_its_deployment_and_may_fail_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: queue.SimpleQueue[int] = queue.SimpleQueue()

    def compile_and_fail(served: ServedModel, batch: int, stopped: Callable[[], bool]) -> None:
        batches.put(batch)
        raise RuntimeError("meant to fail")

    plain = Execution(0, StepLimits(), HostWatch, PlainRecorder(), compile_and_fail)
    monkeypatch.setattr(EngineHarness, "choose", staticmethod(lambda device: replace(plain)))
    path = make_checkpoint("qwen3", tmp_path / "qwen3")
    with EngineHarness(tmp_path) as engine:
        engine.load(path)
        assert batches.get(timeout=30) > 0
        assert len(engine.generate("qwen3", [[5, 6, 7]], 3)[0]) == 3
    assert batches.empty()
