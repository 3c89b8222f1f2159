"""The models of the YAML file, by name; one registry per process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from aegaeon.config.load import config_path, load_config
from aegaeon.config.schema import AegaeonConfig, ModelEntry
from aegaeon.errors import ConfigError
from aegaeon.model_spec import ModelSpec


class ModelRegistry:
    """Specs in the order of the file."""

    def __init__(self, specs: Iterable[ModelSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}

    @classmethod
    def from_config(cls, config: AegaeonConfig, folder: Path) -> ModelRegistry:
        """The file's models; relative paths start at ``folder``, the file's own."""
        return cls(_to_spec(entry, folder) for entry in config.models)

    def get_by_name(self, name: str) -> ModelSpec | None:
        """The model, or None when the file does not list it."""
        return self._specs.get(name)

    def __iter__(self) -> Iterator[ModelSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)

    def __contains__(self, name: object) -> bool:
        return name in self._specs


def _to_spec(entry: ModelEntry, folder: Path) -> ModelSpec:
    path = None if entry.path is None else str(folder / Path(entry.path).expanduser())
    return ModelSpec(
        name=entry.name,
        model_path=path,
        dtype=entry.dtype,
        max_model_len=entry.max_model_len,
        trust_remote_code=entry.trust_remote_code,
        ttft_slo_s=entry.ttft_slo_s if "ttft_slo_s" in entry.model_fields_set else None,
        tpot_slo_s=entry.tpot_slo_s if "tpot_slo_s" in entry.model_fields_set else None,
        params=entry.params,
        id=entry.id,
        tool_parser=entry.tool_parser,
        prefix_caching=entry.prefix_caching,
    )


_lock = threading.Lock()
_registry: ModelRegistry | None = None


def set_model_registry(path: str | os.PathLike[str]) -> ModelRegistry:
    """Make the file's models the process's registry. Raises ConfigError."""
    global _registry
    file = Path(path).absolute()
    registry = ModelRegistry.from_config(load_config(file), file.parent)
    with _lock:
        _registry = registry
    return registry


def get_registry() -> ModelRegistry:
    """The registry set last, or that of ``AEGAEON_CONFIG_PATH``. Raises ConfigError."""
    with _lock:
        registry = _registry
    if registry is not None:
        return registry
    path = config_path()
    if path is None:
        raise ConfigError(
            "no model registry: call aegaeon.models.set_model_registry(path) or set "
            "AEGAEON_CONFIG_PATH to the YAML file"
        )
    return set_model_registry(path)
