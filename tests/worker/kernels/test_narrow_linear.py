"""Products of few rows, and of weights with few."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from aegaeon_worker.kernels import cut_linear as cut
from aegaeon_worker.kernels.narrow_linear import MAX_ROWS, narrow_linear, narrow_swiglu
from tests.worker.kernels.paged import DTYPES, assert_near, tolerance

#: (weight rows, depth): whole tiles, and remainders on both sides.
WEIGHTS = [(64, 128), (100, 200), (16, 520), (96, 256)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 17, MAX_ROWS])
@pytest.mark.parametrize(("outputs", "depth"), WEIGHTS)
@pytest.mark.parametrize("biased", [False, True])
def test_partial_sums_add_up(
    outputs: int, depth: int, rows: int, biased: bool, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(rows, depth + 8, device=device).to(dtype)[:, :depth]
    weight = torch.randn(outputs, depth, device=device).to(dtype)
    bias = torch.randn(outputs, device=device).to(dtype) if biased else None
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    for parts in (None, 1, 3):
        out = narrow_linear(x, weight, bias, parts=parts)
        assert parts is None or out.shape[0] <= parts
        assert_near(out.double().sum(0), expected, 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 32])
@pytest.mark.parametrize(("outputs", "depth"), WEIGHTS)
def test_swiglu(
    outputs: int, depth: int, rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(rows, depth, device=device).to(dtype)
    weight = (torch.randn(2 * outputs, depth, device=device) / depth**0.5).to(dtype)
    gate, up = F.linear(x.double(), weight.double()).chunk(2, -1)
    assert_near(narrow_swiglu(x, weight), F.silu(gate) * up, tolerance(dtype))


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.itemsize == 2])
@pytest.mark.parametrize("rows", [97, cut.MAX_ROWS])
@pytest.mark.parametrize(("outputs", "depth"), [(64, 256), (100, 512)])
@pytest.mark.parametrize("biased", [False, True])
def test_partial_sums_of_a_cut_weight_add_up(
    outputs: int, depth: int, rows: int, biased: bool, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(rows, depth + 8, device=device).to(dtype)[:, :depth]
    weight = torch.randn(outputs, depth, device=device).to(dtype)
    bias = torch.randn(outputs, device=device).to(dtype) if biased else None
    assert cut.can_cut(x, weight)
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert_near(cut.cut_linear(x, weight, bias).double().sum(0), expected, 1e-5)


def test_only_products_that_can_be_cut_are(device: torch.device) -> None:
    x = torch.randn(100, 256, device=device, dtype=torch.bfloat16)
    weight = torch.randn(64, 256, device=device, dtype=torch.bfloat16)
    assert cut.can_cut(x, weight)
    assert not cut.can_cut(x.float(), weight.float())
    assert not cut.can_cut(x.repeat(2, 1), weight)
    assert not cut.can_cut(x[:96], weight)
    assert not cut.can_cut(x, weight.repeat(128, 1))
    assert not cut.can_cut(x[:, :200], weight[:, :200])
    assert not cut.can_cut(x.t().contiguous().t(), weight)
