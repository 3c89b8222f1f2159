"""Which models run natively, and which are left to the generic path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from aegaeon_worker.models.generic import GenericModel
from aegaeon_worker.models.interface import CheckpointReader, ServedModel
from aegaeon_worker.models.loader import TransformersLoader
from aegaeon_worker.models.native.model import NativeModel
from tests.worker.models.paged_runner import PagedRunner, allocate
from tests.worker.models.tiny import FAMILIES, make_checkpoint

NATIVE = frozenset({"llama", "mistral", "phi3", "qwen2", "qwen3"})
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}


def open_model(folder: Path) -> tuple[ServedModel, CheckpointReader]:
    return TransformersLoader(torch.device("cpu")).open(
        folder, dtype=torch.float32, max_model_len=None, trust_remote_code=False
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_families_with_kernels_of_their_own_run_natively(tmp_path: Path, family: str) -> None:
    model, _ = open_model(make_checkpoint(family, tmp_path))
    assert isinstance(model, NativeModel if family in NATIVE else GenericModel)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"attention_bias": True}),
        ("llama", {"rope_parameters": YARN}),
        ("qwen3", {"attention_bias": True, "tie_word_embeddings": False}),
        ("mistral", {"sliding_window": None}),
    ],
)
def test_variants_that_are_covered(tmp_path: Path, family: str, settings: dict[str, Any]) -> None:
    """Both ways must agree, so that it does not matter which one serves a model."""
    make_checkpoint(family, tmp_path, **settings)
    native = PagedRunner(tmp_path)
    assert isinstance(native.model, NativeModel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aegaeon_worker.models.loader.plan_decoder", lambda *_: None)
        generic = PagedRunner(tmp_path)
    assert isinstance(generic.model, GenericModel)
    for work in ({0: list(range(5, 60)), 1: [7]}, {0: [9], 1: [11]}):
        torch.testing.assert_close(native.step(work), generic.step(work), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"mlp_bias": True}),
        ("llama", {"head_dim": 24}),
        ("phi3", {"partial_rotary_factor": 0.5}),
    ],
)
def test_variants_that_are_not_covered_are_served_generically(
    tmp_path: Path, family: str, settings: dict[str, Any]
) -> None:
    model, _ = open_model(make_checkpoint(family, tmp_path, **settings))
    assert isinstance(model, GenericModel)


class _Asked(Mapping[str, torch.Tensor]):
    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self.names: list[str] = []

    def __getitem__(self, name: str) -> torch.Tensor:
        self.names.append(name)
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def test_each_tensor_is_asked_for_once_and_filled(tmp_path: Path) -> None:
    """Progress is counted by what is asked for."""
    model, reader = open_model(make_checkpoint("qwen2", tmp_path))
    asked = _Asked(allocate(model.layout))
    reader.fill_all({0: asked})
    assert sorted(asked.names) == sorted(slot.spec.name for slot in model.layout.slots())
    assert not any(tensor.isnan().any() for tensor in asked._tensors.values())
