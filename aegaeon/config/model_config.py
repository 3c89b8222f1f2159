"""What a model's own JSON files say: end-of-sequence ids, context limit, vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aegaeon.errors import ModelLoadError
from aegaeon.model_spec import ModelSpec

# Names under which model families write their context length.
_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_seq_length",
    "max_sequence_length",
    "seq_length",
    "model_max_length",
)
_LONG = ("longrope", "su")
# Tokenizers without a limit store about 1e30.
_NO_LIMIT = 10**9


@dataclass(frozen=True)
class ModelConfig:
    """Facts that a client needs before it sends a request."""

    #: Sorted union of config, text config, generation config and tokenizer.
    eos_token_ids: tuple[int, ...]
    #: Tokens, prompt included: the override, else the smallest limit that the files name.
    max_model_len: int
    #: Token ids are below it.
    vocab_size: int


def get_model_config(spec: ModelSpec) -> ModelConfig:
    """Read a model's JSON files; no weights, no torch. Raises ModelLoadError."""
    folder = Path(spec.path())
    config = _read(folder / "config.json", required=True)
    text_config = config.get("text_config")
    configs = [config, text_config] if isinstance(text_config, dict) else [config]
    tokenizer_config = _read(folder / "tokenizer_config.json")
    generation_config = _read(folder / "generation_config.json")
    eos = {
        token
        for source in (*configs, generation_config)
        for token in _token_ids(source.get("eos_token_id"), folder)
    }
    eos |= _tokenizer_eos(folder, tokenizer_config)
    return ModelConfig(
        eos_token_ids=tuple(sorted(eos)),
        max_model_len=spec.max_model_len or _context(folder, [*configs, tokenizer_config]),
        vocab_size=_vocabulary(folder, configs),
    )


def _read(path: Path, *, required: bool = False) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not required:
            return {}
        raise _invalid(path, "is missing; the model's path must be a folder with it") from None
    except (OSError, ValueError) as error:
        raise _invalid(path, f"cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise _invalid(path, f"holds a {type(value).__name__}, expected an object")
    return value


def _invalid(path: Path, problem: str) -> ModelLoadError:
    return ModelLoadError(f"{path} {problem}", metadata={"path": path})


def _token_ids(value: Any, folder: Path) -> list[int]:
    """None, one id or a list of ids, as the files have all three."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if type(token) is not int or token < 0:
            raise _invalid(folder, f"names the end-of-sequence id {token!r}, expected an integer")
    return ids


def _context(folder: Path, sources: Iterable[Mapping[str, Any]]) -> int:
    found = [
        value
        for source in sources
        for key in _context_keys(source)
        if type(value := source.get(key)) is int and 0 < value < _NO_LIMIT
    ]
    if not found:
        raise _invalid(
            folder / "config.json",
            f"names no context length ({', '.join(_CONTEXT_KEYS)}); set "
            "max_model_len in the model's YAML entry",
        )
    return min(found)


def _context_keys(source: Mapping[str, Any]) -> tuple[str, ...]:
    rope = source.get("rope_parameters") or source.get("rope_scaling")
    kind = (rope.get("rope_type") or rope.get("type")) if isinstance(rope, dict) else None
    # Beyond the original length, these change the frequencies of a whole sequence, so that keys
    # already cached would no longer fit: the original length is the limit.
    return (*_CONTEXT_KEYS, "original_max_position_embeddings") if kind in _LONG else _CONTEXT_KEYS


def _vocabulary(folder: Path, configs: Iterable[Mapping[str, Any]]) -> int:
    for config in configs:
        if type(size := config.get("vocab_size")) is int and size > 0:
            return size
    raise _invalid(folder / "config.json", "has no vocab_size")


def _tokenizer_eos(folder: Path, tokenizer_config: Mapping[str, Any]) -> set[int]:
    """The id of the tokenizer's own end token; cheap files first, the vocabulary last."""
    token = tokenizer_config.get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        return set()
    for key, entry in tokenizer_config.get("added_tokens_decoder", {}).items():
        if isinstance(entry, dict) and entry.get("content") == content:
            return {int(key)}
    tokenizer = _read(folder / "tokenizer.json")
    for entry in tokenizer.get("added_tokens") or ():
        if entry.get("content") == content:
            return {int(entry["id"])}
    vocabulary = tokenizer.get("model", {}).get("vocab") or _read(folder / "vocab.json")
    found = vocabulary.get(content) if isinstance(vocabulary, dict) else None
    return {found} if type(found) is int else set()
