"""Tiny checkpoints as deployable models, and what `transformers` makes of the same prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aegaeon.model_spec import ModelSpec
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import make_checkpoint

#: Long enough that no test sees the end of a request that fills it.
LONG_CONTEXT = 65_536


def tiny_model(name: str, family: str, folder: Path, **overrides: Any) -> ModelSpec:
    """A checkpoint of ``family`` in ``folder``, under ``name``."""
    return ModelSpec(name, str(make_checkpoint(family, folder / name, **overrides)))


def set_generation_config(spec: ModelSpec, **fields: Any) -> None:
    path = Path(spec.path()) / "generation_config.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **fields}))


def expected_tokens(
    spec: ModelSpec, prompts: Sequence[Sequence[int]], new_tokens: int
) -> list[list[int]]:
    """What `transformers.generate` makes of the prompts, end tokens ignored."""
    return reference_tokens(Path(spec.path()), prompts, new_tokens)
