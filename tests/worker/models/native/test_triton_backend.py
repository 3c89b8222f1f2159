"""The decoder over Triton kernels computes what it computes over PyTorch, and steps on its own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from aegaeon_worker.kernels.greedy import StepState, advance_greedy
from aegaeon_worker.models.native.model import NativeModel
from aegaeon_worker.models.native.triton_backend import TritonBackend
from tests.worker.models.paged_runner import PagedRunner
from tests.worker.models.tiny import VOCAB_SIZE, WINDOW, make_checkpoint

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the runner is on the CPU")


def runners(family: str, folder: Path) -> tuple[PagedRunner, PagedRunner]:
    """The same checkpoint over PyTorch, and over kernels in Triton's interpreter."""
    make_checkpoint(family, folder, num_hidden_layers=1)
    plain, kernels = PagedRunner(folder), PagedRunner(folder, seed=1, packed_for="cuda")
    assert isinstance(kernels.model, NativeModel)
    plan = kernels.model._plan.attention
    kernels.model.backend = TritonBackend(plan, torch.device("cpu"))
    return plain, kernels


def draw(length: int) -> list[int]:
    generator = random.Random(length)
    return [generator.randrange(3, VOCAB_SIZE) for _ in range(length)]


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral"])
def test_mixed_passes_equal_pytorch(tmp_path: Path, family: str) -> None:
    plain, kernels = runners(family, tmp_path)
    passes = [
        {0: draw(1), 1: draw(20), 2: draw(2 * WINDOW)},
        {0: draw(1), 1: draw(1), 2: draw(1)},
        {2: draw(1), 3: draw(33), 0: draw(1), 1: draw(17)},
    ]
    for work in passes:
        expected = plain.step(work, last_only=False)
        torch.testing.assert_close(
            kernels.step(work, last_only=False), expected, atol=1e-4, rtol=1e-4
        )


def test_a_pass_without_logits_stores_its_tokens(tmp_path: Path) -> None:
    plain, kernels = runners("qwen3", tmp_path)
    prompt = draw(20)
    expected = plain.step({0: prompt})
    for runner in (plain, kernels):
        assert runner.step({1: prompt[:12]}, rows=[]).shape == (0, VOCAB_SIZE)
        got = runner.step({1: prompt[12:]})
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_decode_steps_run_on_by_themselves_and_padding_touches_nothing(tmp_path: Path) -> None:
    plain, kernels = runners("qwen3", tmp_path)
    prompts = {0: draw(15), 1: draw(40)}
    expected = plain.generate(prompts, 6)
    first = kernels.step(prompts).argmax(-1)
    width = 4
    tables = torch.zeros(3, width, dtype=torch.int64)
    for sequence, length in ((0, 15), (1, 40)):
        table = kernels._tables[sequence]
        while len(table) < width:
            table.append(kernels._free.pop())
        tables[sequence] = torch.tensor(table)
        assert len(prompts[sequence]) == length
    state = StepState(
        token_ids=torch.tensor([*first.tolist(), 5]),
        positions=torch.tensor([15, 40, -1]),
        context_lens=torch.tensor([16, 41, 0], dtype=torch.int32),
        history=torch.zeros(8, 3, dtype=torch.int64),
        step=torch.zeros(1, dtype=torch.int64),
    )
    model = kernels.model
    assert isinstance(model, NativeModel)
    assert isinstance(model.backend, TritonBackend)
    for _ in range(5):
        attention = model.backend.decode_attention(
            state.positions, state.context_lens, tables, kernels.kv
        )
        advance_greedy(model.logits(state.token_ids, attention, None), state)
    chosen = torch.cat([first[None], state.history[:5, :2]]).t().tolist()
    assert chosen == [expected[0], expected[1]]
    used = set(tables[:2].flatten().tolist())
    untouched = [block for block in range(kernels.kv.shape[0]) if block not in used]
    assert kernels.kv[untouched].isnan().all()
