"""Layouts, conversions and binding of weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from aegaeon_worker.models.loader import TransformersLoader
from tests.worker.models.paged_runner import PagedRunner, allocate
from tests.worker.models.tiny import make_checkpoint

PROMPT = list(range(20, 60))


@pytest.mark.parametrize("family", ["olmo2", "gpt2", "qwen3_moe", "gpt_oss", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_filled_tensors_equal_those_of_transformers(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    make_checkpoint(family, tmp_path)
    model, reader = TransformersLoader(torch.device("cpu")).open(
        tmp_path, dtype=dtype, max_model_len=None, trust_remote_code=False
    )
    tensors = allocate(model.layout)
    reader.fill_all({0: tensors})
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).state_dict()
    for name, tensor in tensors.items():
        wanted = _expected(name, expected)
        assert tensor.dtype == wanted.dtype
        assert torch.equal(tensor, wanted)


def _expected(name: str, module: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The tensor of the module, or those of which a fused one is made."""
    fused = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    for whole, parts in fused.items():
        if whole in name and name not in module:
            return torch.cat([module[name.replace(whole, part)] for part in parts])
    return module[name]


def test_stages_follow_the_order_of_execution(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path, tie_word_embeddings=False)
    model, _ = TransformersLoader(torch.device("cpu")).open(
        tmp_path, dtype=torch.float32, max_model_len=None, trust_remote_code=False
    )
    stages = model.layout.stages
    assert [stage.name for stage in stages] == [
        "embeddings",
        "layer.0",
        "layer.1",
        "layer.2",
        "head",
    ]
    for index, stage in enumerate(stages[1:4]):
        assert all(slot.spec.name.startswith(f"model.layers.{index}.") for slot in stage.slots)
    assert [slot.spec.name for slot in stages[-1].slots] == ["model.norm.weight", "lm_head.weight"]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "phi3", "gpt2"])
def test_only_the_layout_is_lost_when_the_range_is_reused(tmp_path: Path, family: str) -> None:
    """Leaving a model and coming back to it brings back all it computes with."""
    make_checkpoint(family, tmp_path)
    model, reader = TransformersLoader(torch.device("cpu")).open(
        tmp_path, dtype=torch.float32, max_model_len=None, trust_remote_code=False
    )
    tensors = allocate(model.layout)
    runner = PagedRunner.over(model, reader, tensors)
    before = runner.generate({0: PROMPT}, 8)[0]
    for tensor in tensors.values():
        tensor.fill_(float("nan"))
    assert runner.step({1: PROMPT}).isnan().all()
    reader.fill_all({0: tensors})
    assert runner.generate({2: PROMPT}, 8)[2] == before


def test_bfloat16_model_computes_close_to_float32(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    model, reader = TransformersLoader(torch.device("cpu")).open(
        tmp_path, dtype=torch.bfloat16, max_model_len=None, trust_remote_code=False
    )
    runner = PagedRunner.over(model, reader, allocate(model.layout))
    assert runner.kv.dtype == torch.bfloat16
    logits = runner.step({0: PROMPT})
    assert logits.dtype == torch.float32
    expected = PagedRunner(tmp_path).step({0: PROMPT})
    assert torch.nn.functional.cosine_similarity(logits, expected).item() > 0.98
