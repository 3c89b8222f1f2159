"""Weight files: what loads, what is refused, and what is named in the error."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from aegaeon_worker.models import loader
from aegaeon_worker.models.checkpoint import INDEX_FILE, SINGLE_FILE
from aegaeon_worker.models.errors import ModelLoadError
from aegaeon_worker.models.interface import CheckpointReader, ServedModel
from aegaeon_worker.models.loader import TransformersLoader
from tests.worker.models.paged_runner import PagedRunner, allocate
from tests.worker.models.tiny import make_checkpoint

PROMPT = [5, 9, 300, 41, 7]


def open_model(
    path: Path, dtype: torch.dtype = torch.float32
) -> tuple[ServedModel, CheckpointReader]:
    return TransformersLoader(torch.device("cpu")).open(
        path, dtype=dtype, max_model_len=None, trust_remote_code=False
    )


def edit_weights(path: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path / SINGLE_FILE)
    edit(tensors)
    save_file(tensors, path / SINGLE_FILE, metadata={"format": "pt"})


def shard(path: Path) -> list[Path]:
    """Split the single file into two shards and an index."""
    tensors = load_file(path / SINGLE_FILE)
    names = sorted(tensors)
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weight_map = {name: files[index % 2] for index, name in enumerate(names)}
    for file in files:
        part = {name: tensors[name] for name in names if weight_map[name] == file}
        save_file(part, path / file, metadata={"format": "pt"})
    (path / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (path / SINGLE_FILE).unlink()
    return [path / file for file in files]


def logits_of(path: Path) -> torch.Tensor:
    return PagedRunner(path, num_blocks=4).step({0: PROMPT})


def reference_logits(path: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([PROMPT])).logits[:, -1]
    return logits


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return make_checkpoint("llama", tmp_path / "tied")


@pytest.fixture
def untied(tmp_path: Path) -> Path:
    return make_checkpoint("llama", tmp_path / "untied", tie_word_embeddings=False)


def test_shards_load_as_the_single_file_does(untied: Path) -> None:
    expected = logits_of(untied)
    shard(untied)
    assert torch.equal(logits_of(untied), expected)


@pytest.mark.parametrize("stored", ["embedding", "head", "both"])
def test_tied_weights_load_from_either_name_into_one_slot(tied: Path, stored: str) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        embedding = tensors.pop("model.embed_tokens.weight")
        if stored != "head":
            tensors["model.embed_tokens.weight"] = embedding
        if stored != "embedding":
            tensors["lm_head.weight"] = embedding.clone()

    expected = logits_of(tied)
    edit_weights(tied, edit)
    model, _ = open_model(tied)
    names = [slot.spec.name for slot in model.layout.slots()]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert torch.equal(logits_of(tied), expected)


def test_tied_config_with_two_different_tensors_loads_as_transformers_does(tied: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0)

    edit_weights(tied, edit)
    torch.testing.assert_close(logits_of(tied), reference_logits(tied), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("missing", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight"])
def test_missing_tensor_is_named(untied: Path, missing: str) -> None:
    edit_weights(untied, lambda tensors: tensors.pop(missing))  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match=missing):
        open_model(untied)


def test_wrong_shape_is_named_with_both_shapes(untied: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = torch.ones(63)

    edit_weights(untied, edit)
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight.*63.*64"):
        open_model(untied)


def test_integer_weights_are_refused(untied: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int8)

    edit_weights(untied, edit)
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight.*int8"):
        open_model(untied)


def test_extra_tensors_are_named_in_a_warning_unless_harmless(
    untied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        tensors["value_head.weight"] = torch.ones(3)

    expected = logits_of(untied)
    edit_weights(untied, edit)
    with caplog.at_level(logging.WARNING, "aegaeon_worker"):
        assert torch.equal(logits_of(untied), expected)
    assert "value_head.weight" in caplog.text
    assert "inv_freq" not in caplog.text


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: b"", "0 bytes"),
        (lambda data: data[:5], "cut off"),
        (lambda data: data[:100], "cut off"),
        (lambda data: data[:-1], "truncated"),
        (lambda data: data + b"\0", "too long"),
        (lambda data: data[:8] + b"?" + data[9:], "not JSON"),
        (lambda data: b"\x02" + b"\0" * 7 + b"{}", "no tensors"),
        (lambda data: b"<!DOCTYPE html><html></html>", "not a safetensors file"),
    ],
    ids=["empty", "tiny", "header", "short", "long", "json", "none", "html"],
)
def test_damaged_file_is_named(untied: Path, damage: Callable[[bytes], bytes], reason: str) -> None:
    first, _ = shard(untied)
    first.write_bytes(damage(first.read_bytes()))
    with pytest.raises(ModelLoadError, match=f"{first.name}: .*{reason}"):
        open_model(untied)


def test_folder_in_place_of_a_file_is_named(untied: Path) -> None:
    (untied / SINGLE_FILE).unlink()
    (untied / SINGLE_FILE).mkdir()
    with pytest.raises(ModelLoadError, match=f"{SINGLE_FILE}: cannot be read"):
        open_model(untied)


def test_missing_shard_is_named(untied: Path) -> None:
    _, second = shard(untied)
    second.unlink()
    with pytest.raises(ModelLoadError, match=f"{second.name}: missing"):
        open_model(untied)


def test_index_must_agree_with_the_shards(untied: Path) -> None:
    shard(untied)
    index = json.loads((untied / INDEX_FILE).read_text())
    files = sorted(set(index["weight_map"].values()))
    wrong = dict.fromkeys(index["weight_map"], files[0]) | {"lm_head.weight": files[1]}
    (untied / INDEX_FILE).write_text(json.dumps({"weight_map": wrong}))
    with pytest.raises(ModelLoadError, match="where the index puts it"):
        open_model(untied)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("[]", "not a safetensors index"),
        ("{", "not a safetensors index"),
        ('{"weight_map": {}}', "names no weight file"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "not to a file name"),
    ],
)
def test_broken_index_is_named(untied: Path, index: str, reason: str) -> None:
    shard(untied)
    (untied / INDEX_FILE).write_text(index)
    with pytest.raises(ModelLoadError, match=f"{INDEX_FILE}: .*{reason}"):
        open_model(untied)


def test_pickled_weights_are_never_loaded(untied: Path) -> None:
    (untied / SINGLE_FILE).unlink()
    with pytest.raises(ModelLoadError, match=r"no model\.safetensors"):
        open_model(untied)
    (untied / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin is in a pickle format"):
        open_model(untied)


def test_file_damaged_after_opening_is_named_when_read(untied: Path) -> None:
    model, reader = open_model(untied)
    file = untied / SINGLE_FILE
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ModelLoadError, match=SINGLE_FILE):
        reader.fill_all({0: allocate(model.layout)})


def test_another_release_tells_models_apart_as_this_one(
    untied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it packs them otherwise: workers of both serve a model together."""
    ours = open_model(untied)[1]
    packed = ours.packed_fingerprint(0)
    monkeypatch.setattr(loader, "LAYOUT_VERSION", loader.LAYOUT_VERSION + 1)
    theirs = open_model(untied)[1]
    assert ours.fingerprint == theirs.fingerprint
    assert ours.fingerprint.startswith("files-1:")
    assert packed != theirs.packed_fingerprint(0)


def test_fingerprint_changes_with_weights_config_and_dtype_only(untied: Path) -> None:
    def fingerprint(dtype: torch.dtype = torch.float32) -> str:
        return open_model(untied, dtype)[1].fingerprint

    seen = [fingerprint()]
    assert fingerprint() == seen[0]
    seen.append(fingerprint(torch.bfloat16))
    file = untied / SINGLE_FILE
    stat = file.stat()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    seen.append(fingerprint())
    config = untied / "config.json"
    config.write_text(config.read_text() + "\n")
    seen.append(fingerprint())
    make_checkpoint("llama", untied, seed=1, tie_word_embeddings=False)
    seen.append(fingerprint())
    assert len(set(seen)) == len(seen)
