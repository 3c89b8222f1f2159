"""What cannot be served is refused when it is opened, with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from aegaeon_worker.models.errors import ModelLoadError, ModelUnsupportedError
from aegaeon_worker.models.loader import TransformersLoader
from tests.worker.models.tiny import make_checkpoint


def open_model(path: Path, max_model_len: int | None = None) -> None:
    TransformersLoader(torch.device("cpu")).open(
        path, dtype=torch.float32, max_model_len=max_model_len, trust_remote_code=False
    )


def write_config(folder: Path, family: str, **settings: Any) -> Path:
    AutoConfig.for_model(family, **settings).save_pretrained(folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 2}, "attention interface"),
        ("mamba", {"hidden_size": 32, "num_hidden_layers": 2}, "attention"),
        ("t5", {"d_model": 32, "num_layers": 2}, "encoder-decoder"),
        ("bert", {"hidden_size": 32, "num_attention_heads": 2}, "not causal|attention"),
        (
            "lfm2",
            {"hidden_size": 64, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
            "layers",
        ),
        ("vit", {"hidden_size": 32}, "causal LM"),
        (
            "llama4_text",
            {
                "hidden_size": 64,
                "intermediate_size": 64,
                "intermediate_size_mlp": 64,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "num_local_experts": 2,
            },
            "chunked_attention",
        ),
        (
            "deepseek_v3",
            {
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "kv_lora_rank": 16,
                "q_lora_rank": 16,
                "first_k_dense_replace": 2,
            },
            "size",
        ),
    ],
)
def test_unsupported_family_is_refused_with_its_reason(
    tmp_path: Path, family: str, settings: dict[str, Any], reason: str
) -> None:
    write_config(tmp_path, family, **settings)
    with pytest.raises(ModelUnsupportedError, match=reason):
        open_model(tmp_path)


def test_quantized_checkpoint_is_refused(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelUnsupportedError, match="gptq"):
        open_model(tmp_path)


def test_own_code_is_refused_unless_trusted(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    edit_config(tmp_path, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    with pytest.raises(ModelLoadError, match="trust_remote_code"):
        open_model(tmp_path)


def test_missing_folder_and_missing_or_broken_config_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="nowhere: not a folder"):
        open_model(tmp_path / "nowhere")
    with pytest.raises(ModelLoadError, match=r"config\.json: missing"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json: cannot be read"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-family"}')
    with pytest.raises(ModelLoadError, match="no-such-family"):
        open_model(tmp_path)


def test_length_above_the_known_context_names_both(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path, max_position_embeddings=128)
    with pytest.raises(ModelLoadError, match=r"129.*128"):
        open_model(tmp_path, max_model_len=129)
    with pytest.raises(ModelLoadError, match="at least 1"):
        open_model(tmp_path, max_model_len=0)


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "default"}, 1024),
        ({"rope_type": "linear", "factor": 2.0}, 1024),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        (
            {
                "rope_type": "longrope",
                "factor": 2.0,
                "original_max_position_embeddings": 512,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
            },
            512,
        ),
    ],
)
def test_context_length_knows_rope_scaling(
    tmp_path: Path, rope: dict[str, Any], length: int
) -> None:
    make_checkpoint("llama", tmp_path, rope_parameters={"rope_theta": 10000.0, **rope})
    model, _ = TransformersLoader(torch.device("cpu")).open(
        tmp_path, dtype=torch.float32, max_model_len=None, trust_remote_code=False
    )
    assert model.max_model_len == length
