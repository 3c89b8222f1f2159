"""The decoder over Triton kernels computes what it computes over PyTorch, and steps on its own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from aegaeon_worker.models.interface import DecodeRows
from aegaeon_worker.models.native import triton_backend
from aegaeon_worker.models.native.model import NativeModel
from aegaeon_worker.models.native.plan import AttentionPlan
from aegaeon_worker.models.native.triton_backend import TritonBackend
from aegaeon_worker.parallel.collectives import Alone
from aegaeon_worker.parallel.vocabulary import SharedVocabulary
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


def test_weights_are_cut_in_decode_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts: list[int] = []

    def cut(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        cuts.append(x.shape[0])
        return torch.empty(2, x.shape[0], weight.shape[0])

    monkeypatch.setattr(triton_backend, "cut_linear", cut)
    x = torch.zeros(100, 256, dtype=torch.float16)
    weight = torch.zeros(64, 256, dtype=torch.float16)
    plan = AttentionPlan(1, 1, 16, (None,), 1e-6, torch.ones(8), 1.0)
    backend = TritonBackend(plan, torch.device("cpu"))
    assert backend.linear(x, weight, None).shape == (100, 64)
    rows = DecodeRows(
        staged=torch.full((4, 100), -1), tokens=torch.zeros(100, dtype=torch.int64),
        found=torch.empty(100, 2, dtype=torch.float64),
        block_tables=torch.zeros(100, 1, dtype=torch.int64),
        kv=torch.zeros(1, 1, 2, 16, 1, 16, dtype=torch.float16), logits=torch.empty(100, 64),
    )  # fmt: skip
    step = backend.decode_step(
        lambda ids, attention, wanted: backend.linear(x, weight, None)[0],
        SharedVocabulary(Alone(), 64, 64),
    )
    step(rows)
    assert cuts == [100]
    assert backend.linear(x, weight, None).shape == (100, 64)


@torch.inference_mode()
@pytest.mark.parametrize("chooses", [True, False])
def test_decode_steps_feed_each_other_and_padding_touches_nothing(
    tmp_path: Path, chooses: bool
) -> None:
    plain, kernels = runners("qwen3", tmp_path)
    prompts = {0: draw(15), 1: draw(40)}
    expected = plain.generate(prompts, 6)
    first = kernels.step(prompts).argmax(-1)
    width = 4
    tables = torch.full((3, width + 2), 10**6)
    for sequence in (0, 1):
        table = kernels._tables[sequence]
        while len(table) < width:
            table.append(kernels._free.pop())
        tables[sequence, :width] = torch.tensor(table)
    whole = tables.clone()
    tables[:2, 1:width] = 10**6  # all but the blocks of the prompts' beginnings
    tables[1, 1:2] = whole[1, 1]

    def blocks(*positions: int) -> list[int]:
        return [int(whole[row, position // 16]) for row, position in enumerate(positions)]

    logits = torch.empty(3, VOCAB_SIZE)
    rows = DecodeRows(
        staged=torch.tensor(
            [[int(first[0]), int(first[1]), 0], [-1, -1, -1], [15, 40, -1], [*blocks(15, 40), -1]]
        ),
        tokens=torch.full((5,), 10**6),
        found=torch.empty(3, 2, dtype=torch.float64),
        block_tables=tables,
        kv=kernels.kv,
        logits=None if chooses else logits,
    )
    step = kernels.model.decode_step
    assert step is not None
    chosen = [first.tolist()]
    for number in range(5):
        step(rows)
        if not chooses:
            rows.tokens[:3] = logits.argmax(-1)
        chosen.append(rows.tokens[:2].tolist())
        # From now on each from the row of the other, and back again.
        sources = [0, 1] if number % 2 else [1, 0]
        rows.tokens[:2] = rows.tokens[sources]
        at = 16 + number, 41 + number
        rows.staged.copy_(torch.tensor([[0, 0, 0], [*sources, -1], [*at, -1], [*blocks(*at), -1]]))
    assert torch.tensor(chosen).t().tolist() == [expected[0], expected[1]]
    used = set(tables[:2, :width].flatten().tolist())
    untouched = [block for block in range(kernels.kv.shape[0]) if block not in used]
    assert kernels.kv[untouched].isnan().all()
