"""A checkpoint that was inspected for a deployment is not opened again to be loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from aegaeon_worker.engine.model_spec import ModelSpec
from aegaeon_worker.models.loader import TransformersLoader
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import make_checkpoint

PROMPT = [5, 9, 13, 17]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were opened, in order."""
    folders: list[Path] = []
    genuine = TransformersLoader.open

    def open_(self, path, **options):  # type: ignore[no-untyped-def]
        folders.append(path)
        return genuine(self, path, **options)

    monkeypatch.setattr(TransformersLoader, "open", open_)
    return folders


def test_what_was_inspected_is_opened_once(
    tmp_path: Path, shm_dir: Path, opened: list[Path]
) -> None:
    path = make_checkpoint("qwen3", tmp_path / "model")
    with EngineHarness(shm_dir) as engine:
        facts = engine.parts.preparer.inspect(ModelSpec("model", path, dtype=torch.float32))
        assert engine.load(path).model.facts == facts
        assert opened == [path]
        assert engine.generate("model", [PROMPT], 8) == reference_tokens(path, [PROMPT], 8)
        engine.load(path, "another")
        assert opened == [path, path]


def test_a_checkpoint_that_has_changed_since_is_opened_anew(
    tmp_path: Path, shm_dir: Path, opened: list[Path]
) -> None:
    path = make_checkpoint("qwen3", tmp_path / "model", 1)
    other = make_checkpoint("qwen3", tmp_path / "other", 2)
    with EngineHarness(shm_dir) as engine:
        engine.parts.preparer.inspect(ModelSpec("model", path, dtype=torch.float32))
        for file in other.iterdir():
            shutil.copy2(file, path / file.name)
        engine.load(path)
        assert opened == [path, path]
        assert engine.generate("model", [PROMPT], 8) == reference_tokens(other, [PROMPT], 8)


def test_another_spec_of_the_same_folder_is_opened_anew(
    tmp_path: Path, shm_dir: Path, opened: list[Path]
) -> None:
    path = make_checkpoint("qwen3", tmp_path / "model")
    with EngineHarness(shm_dir) as engine:
        engine.parts.preparer.inspect(ModelSpec("model", path, dtype=torch.float32))
        engine.load(path, max_model_len=64)
        assert opened == [path, path]
