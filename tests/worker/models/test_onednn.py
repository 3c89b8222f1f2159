"""Packed weights multiply as plain ones do, from whatever memory they are laid over."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from aegaeon_worker.models.linear import product
from aegaeon_worker.models.loader import TransformersLoader
from aegaeon_worker.models.onednn import onednn_format
from tests.worker.models.paged_runner import PagedRunner
from tests.worker.models.tiny import make_checkpoint

SHAPE = (192, 64)


def test_this_torch_packs() -> None:
    """Else CPUs run at the speed of plain weights, and nobody would notice."""
    assert onednn_format(SHAPE) is not None


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 8, 17, 64, 65, 256, 257, 600])
@torch.inference_mode()
def test_every_number_of_rows_equals_linear(rows: int) -> None:
    order = onednn_format(SHAPE)
    assert order is not None
    weight = torch.randn(SHAPE)
    x = torch.randn(rows, SHAPE[1])
    expected = F.linear(x, weight)
    order.pack(weight)
    torch.testing.assert_close(product(x, order.over(weight)), expected, atol=1e-4, rtol=1e-5)


@torch.inference_mode()
def test_ever_new_numbers_of_rows_do_not_fill_memory() -> None:
    """oneDNN never forgets the kernel of a number of rows."""
    order = onednn_format(SHAPE)
    assert order is not None
    weight = torch.randn(SHAPE)
    order.pack(weight)
    packed = order.over(weight)
    product(torch.randn(512, SHAPE[1]), packed)
    before = psutil.Process().memory_info().rss
    for rows in range(1, 600):
        product(torch.randn(rows, SHAPE[1]), packed)
    assert psutil.Process().memory_info().rss - before < 64 << 20


@torch.inference_mode()
def test_a_packed_weight_follows_the_memory_it_lies_over() -> None:
    """Models are bound once, and their weights come and go."""
    order = onednn_format(SHAPE)
    assert order is not None
    memory = torch.full(SHAPE, float("nan"))
    bound = order.over(memory)
    x = torch.randn(5, SHAPE[1])
    for _ in range(2):
        weight = torch.randn(SHAPE)
        expected = F.linear(x, weight)
        order.pack(weight)
        memory.copy_(weight)
        torch.testing.assert_close(product(x, bound), expected, atol=1e-4, rtol=1e-5)
        memory.fill_(float("nan"))


def test_a_shape_whose_order_needs_padding_stays_plain() -> None:
    assert onednn_format((7, 5)) is None


@pytest.mark.parametrize("family", ["llama", "phi3", "qwen3"])
def test_a_packed_model_computes_what_a_plain_one_does(tmp_path: Path, family: str) -> None:
    make_checkpoint(family, tmp_path)
    packed, plain = PagedRunner(tmp_path), PagedRunner(tmp_path, packed_for="cuda")
    for work in ({0: list(range(5, 60)), 1: [7]}, {0: [9], 1: [11]}):
        torch.testing.assert_close(packed.step(work), plain.step(work), atol=1e-4, rtol=1e-5)


def test_differently_packed_weights_have_different_fingerprints(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    prints = {
        TransformersLoader(torch.device(device))
        .open(tmp_path, dtype=torch.float32, max_model_len=None, trust_remote_code=False)[1]
        .packed_fingerprint(0)
        for device in ("cpu", "cuda")
    }
    assert len(prints) == 2
