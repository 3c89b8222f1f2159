"""How many tokens a model may see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedConfig

from aegaeon_worker.models.errors import ModelLoadError

_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")


def context_length(path: Path, config: PreTrainedConfig, override: int | None) -> int:
    """The smallest length ``config`` names, or ``override``, which must not exceed it."""
    text = config.get_text_config()
    known = [length for key in _LENGTH_KEYS if isinstance(length := getattr(text, key, None), int)]
    for rope in _ropes(text):
        known = [_scaled(rope, length) for length in known]
    if not known and override is None:
        raise ModelLoadError(
            path / "config.json", "names no context length; set max_model_len for this model"
        )
    if override is None:
        return min(known)
    if override < 1:
        raise ModelLoadError(path, f"max_model_len is {override}; it must be at least 1")
    if known and override > min(known):
        raise ModelLoadError(
            path, f"max_model_len is {override}, but the model knows {min(known)} tokens only"
        )
    return override


def _ropes(config: PreTrainedConfig) -> Iterator[dict[str, object]]:
    """The rotary parameters: one set, or one per layer type."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict):
        return
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    yield from nested if "rope_type" not in parameters else [parameters]


def _scaled(rope: dict[str, object], length: int) -> int:
    """The length that ``rope`` allows a model configured for ``length`` positions."""
    original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    if rope.get("rope_type") == "longrope" and isinstance(original, int):
        # Beyond it the frequencies of a whole sequence change, its cached keys included.
        return min(length, original)
    if rope.get("rope_type") == "yarn" and isinstance(original, int) and isinstance(factor, float):
        return max(length, int(original * factor))
    return length
