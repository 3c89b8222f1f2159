"""The products for few rows equal ``F.linear``, shared between layers or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from aegaeon_worker.models.linear import CpuLinear, SharedProduct, use_cpu_linear
from aegaeon_worker.models.loader import TransformersLoader
from tests.worker.models.paged_runner import allocate
from tests.worker.models.tiny import make_checkpoint

IN_FEATURES = 48


def make_layers(sizes: list[int], *, bias: bool, gap: int = 0) -> nn.ModuleDict:
    """Layers whose weights follow each other in one storage, ``gap`` numbers apart."""
    total = sum(size * IN_FEATURES + gap for size in sizes)
    storage = torch.randn(total, generator=torch.Generator().manual_seed(0))
    layers = nn.ModuleDict()
    offset = 0
    for index, size in enumerate(sizes):
        layer = nn.Linear(IN_FEATURES, size, bias=bias)
        weight = storage[offset : offset + size * IN_FEATURES].view(size, IN_FEATURES)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layers[f"layer{index}"] = layer
        offset += size * IN_FEATURES + gap
    return layers


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 16, 64, 65])
@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_every_number_of_rows_equals_linear(rows: int, bias: bool) -> None:
    layers = make_layers([640, 32, 24], bias=bias)
    expected = {name: (layer.weight, layer.bias) for name, layer in layers.items()}
    names = list(layers)
    use_cpu_linear(layers, [names])
    assert all(layer.shared is not None for layer in layers.values())
    x = torch.randn(1, rows, IN_FEATURES)
    for name in names:
        out = layers[name](x)
        assert out.is_contiguous()
        torch.testing.assert_close(out, F.linear(x, *expected[name]), atol=1e-4, rtol=1e-5)


@torch.inference_mode()
def test_a_layer_given_another_tensor_computes_for_itself() -> None:
    layers = make_layers([32, 32], bias=False)
    use_cpu_linear(layers, [list(layers)])
    x, other = torch.randn(2, IN_FEATURES), torch.randn(2, IN_FEATURES)
    layers["layer0"](x)
    out = layers["layer1"](other)
    torch.testing.assert_close(out, F.linear(other, layers["layer1"].weight))


def test_weights_that_are_apart_are_not_shared() -> None:
    layers = make_layers([32, 32], bias=False, gap=64)
    use_cpu_linear(layers, [list(layers)])
    assert all(isinstance(layer, CpuLinear) and layer.shared is None for layer in layers.values())


@pytest.mark.parametrize("family", ["olmo2", "gemma2"])
def test_query_key_value_and_gate_up_share_products(tmp_path: Path, family: str) -> None:
    make_checkpoint(family, tmp_path)
    model, reader = TransformersLoader(torch.device("cpu")).open(
        tmp_path, dtype=torch.float32, max_model_len=None, trust_remote_code=False
    )
    tensors = allocate(model.layout)
    reader.fill_all({0: tensors})
    model.bind(tensors)
    shared: dict[SharedProduct, list[str]] = {}
    for name, layer in model._module.named_modules():  # type: ignore[attr-defined]
        if isinstance(layer, CpuLinear) and layer.shared is not None:
            shared.setdefault(layer.shared, []).append(name.rsplit(".", 1)[1])
    expected = [["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]] * 3
    assert list(shared.values()) == expected
