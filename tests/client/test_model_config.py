"""End ids, context and vocabulary from a model's JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aegaeon.config import get_model_config
from aegaeon.errors import ErrorReason, ModelLoadError
from aegaeon.models import ModelSpec

CONFIG: dict[str, Any] = {"vocab_size": 100, "max_position_embeddings": 64, "eos_token_id": 2}


def model(folder: Path, max_model_len: int | None = None, **files: Any) -> ModelSpec:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return ModelSpec("m", str(folder), max_model_len=max_model_len)


def test_end_ids_are_the_sorted_union_of_all_sources(tmp_path: Path) -> None:
    spec = model(
        tmp_path,
        config={**CONFIG, "eos_token_id": [9, 2], "text_config": {"eos_token_id": 5}},
        generation_config={"eos_token_id": [7, 2]},
        tokenizer_config={"eos_token": {"content": "<end>"}},
        tokenizer={"added_tokens": [{"id": 1, "content": "<end>"}], "model": {"vocab": {}}},
    )
    assert get_model_config(spec).eos_token_ids == (1, 2, 5, 7, 9)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"eos_token": "e", "added_tokens_decoder": {"8": {"content": "e"}}}},
        {"tokenizer_config": {"eos_token": "e"}, "tokenizer": {"model": {"vocab": {"e": 8}}}},
        {"tokenizer_config": {"eos_token": "e"}, "vocab": {"e": 8}},
    ],
)
def test_the_tokenizers_end_token_is_found_wherever_it_is_kept(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    assert get_model_config(model(tmp_path, config=CONFIG, **files)).eos_token_ids == (2, 8)


def test_a_model_without_end_ids_has_none(tmp_path: Path) -> None:
    spec = model(tmp_path, config={**CONFIG, "eos_token_id": None})
    assert get_model_config(spec).eos_token_ids == ()


def test_the_context_is_the_smallest_known_or_the_override(tmp_path: Path) -> None:
    files = {"config": CONFIG, "tokenizer_config": {"model_max_length": 32}}
    assert get_model_config(model(tmp_path, **files)).max_model_len == 32
    assert get_model_config(model(tmp_path, 16, **files)).max_model_len == 16
    no_limit = {"model_max_length": int(1e30)}
    assert get_model_config(model(tmp_path, tokenizer_config=no_limit)).max_model_len == 64


def test_long_rope_limits_the_context_to_the_original_length(tmp_path: Path) -> None:
    config = {**CONFIG, "original_max_position_embeddings": 8}
    assert get_model_config(model(tmp_path, config=config)).max_model_len == 64
    config["rope_scaling"] = {"type": "longrope"}
    assert get_model_config(model(tmp_path, config=config)).max_model_len == 8


def test_the_text_config_of_a_multimodal_model_counts(tmp_path: Path) -> None:
    spec = model(tmp_path, config={"text_config": CONFIG})
    config = get_model_config(spec)
    assert (config.vocab_size, config.max_model_len, config.eos_token_ids) == (100, 64, (2,))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "config.json is missing"),
        ({"config": [1]}, "holds a list"),
        ({"config": {"vocab_size": 1}}, "names no context length"),
        ({"config": {"max_position_embeddings": 8}}, "has no vocab_size"),
        ({"config": {**CONFIG, "eos_token_id": "two"}}, "end-of-sequence id 'two'"),
    ],
)
def test_unusable_files_are_named(tmp_path: Path, files: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words) as caught:
        get_model_config(model(tmp_path, **files))
    assert caught.value.reason is ErrorReason.CHECKPOINT_INVALID
    assert str(tmp_path) in caught.value.metadata["path"]


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 1')
    with pytest.raises(ModelLoadError, match=r"config\.json cannot be read"):
        get_model_config(ModelSpec("m", str(tmp_path)))
