"""A checkpoint that cannot be served is refused with its reason while others are served."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from aegaeon import LLMService
from aegaeon.errors import (
    AegaeonError,
    ConfigError,
    ConflictError,
    ErrorReason,
    ModelLoadError,
    ModelUnsupportedError,
)
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import model_pb2
from tests.integration.models import tiny_model
from tests.integration.workload import ask, tiny_node, tokens_of

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound checkpoint whose head is not tied."""
    return Path(tiny_model("sound", "qwen2", tmp_path_factory.mktemp("sound")).path())


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def empty_weights(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")


def truncate_weights(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: len(whole) // 2])


def remove_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def lose_a_shard(folder: Path) -> None:
    names = list(load_file(folder / WEIGHTS))
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    (folder / WEIGHTS).rename(folder / shards[0])
    weight_map = {name: shards[position % 2] for position, name in enumerate(names)}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def remove_head(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["lm_head.weight"]
    save_file(tensors, folder / WEIGHTS)


def pickle_weights(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def become_bloom(folder: Path) -> None:
    AutoConfig.for_model("bloom", hidden_size=32, n_layer=2, n_head=2).save_pretrained(folder)


DAMAGES = [
    (remove_config, ModelLoadError, "config.json"),
    (remove_weights, ModelLoadError, "safetensors"),
    (empty_weights, ModelLoadError, WEIGHTS),
    (truncate_weights, ModelLoadError, WEIGHTS),
    (lose_a_shard, ModelLoadError, "model-00002-of-00002.safetensors"),
    (remove_head, ModelLoadError, "lm_head.weight"),
    (pickle_weights, ModelLoadError, "safetensors"),
    (become_bloom, ModelUnsupportedError, "Bloom"),
]


def deploy(service: LLMService, spec: ModelSpec) -> None:
    asyncio.run(service.deploy_model_replicas(spec))


def undeploy(service: LLMService, spec: ModelSpec) -> None:
    asyncio.run(service.undeploy_model_replicas(spec))


def deployed(service: LLMService) -> set[str]:
    return {model.spec.name for model in service.runtime().models}


@pytest.mark.parametrize(
    ("damage", "kind", "words"), DAMAGES, ids=[damage.__name__ for damage, _, _ in DAMAGES]
)
def test_a_damaged_checkpoint_is_refused_beside_others(
    service: LLMService,
    tiny_models: list[ModelSpec],
    sound: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    kind: type[AegaeonError],
    words: str,
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(sound, folder)
    damage(folder)
    spec = ModelSpec(f"damaged/{damage.__name__}", str(folder))
    good = ask(tiny_models[0], [5, 6, 7], 200)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(service.serve, [good])
        with pytest.raises(kind) as caught:
            deploy(service, spec)
        assert type(caught.value) is kind
        assert words in str(caught.value)
        assert str(folder) in str(caught.value)
        assert len(tokens_of(running.result()[0])) == 200
    assert spec.name not in {
        model.spec.name
        for model in service.runtime().models
        if any(replica.state == model_pb2.REPLICA_STATE_READY for replica in model.replicas)
    }


def test_a_mended_checkpoint_is_served_under_the_same_name(
    service: LLMService, sound: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mended"
    shutil.copytree(sound, folder)
    truncate_weights(folder)
    spec = ModelSpec("mended", str(folder))
    with pytest.raises(ModelLoadError):
        deploy(service, spec)
    shutil.copy(sound / WEIGHTS, folder)
    deploy(service, spec)
    try:
        assert len(tokens_of(service.serve([ask(spec, [5], 3)])[0])) == 3
    finally:
        undeploy(service, spec)
    assert spec.name not in deployed(service)


def test_a_missing_folder_is_named(service: LLMService, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gone is not a folder"):
        deploy(service, ModelSpec("gone", str(tmp_path / "gone")))


def test_a_name_cannot_mean_two_models(
    service: LLMService, tiny_models: list[ModelSpec], sound: Path
) -> None:
    with pytest.raises(ConflictError, match=tiny_models[0].name):
        deploy(service, ModelSpec(tiny_models[0].name, str(sound)))


def test_a_context_above_the_model_s_is_refused(service: LLMService, sound: Path) -> None:
    spec = ModelSpec("long", str(sound), max_model_len=4096)
    with pytest.raises(AegaeonError, match=r"4096.*1024") as caught:
        deploy(service, spec)
    assert caught.value.reason in (ErrorReason.CHECKPOINT_INVALID, ErrorReason.INVALID_FIELD)


def test_a_service_does_not_start_with_a_damaged_checkpoint(
    sound: Path, tmp_path: Path, shm_dir: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(sound, folder)
    truncate_weights(folder)
    before = set(shm_dir.iterdir())
    with pytest.raises(ModelLoadError, match=WEIGHTS):
        LLMService([tiny_node([ModelSpec("damaged", str(folder))], shm_dir=str(shm_dir))])
    assert set(shm_dir.iterdir()) == before
