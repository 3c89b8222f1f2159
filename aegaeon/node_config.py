"""One node of a cluster: its engines, its memory, the models it starts with."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from aegaeon.config.load import load_config
from aegaeon.config.unsupported import refuse_unsupported
from aegaeon.errors import ConfigError
from aegaeon.machine import DEFAULT_SHM_DIR
from aegaeon.model_spec import ModelSpec

EngineRole = Literal["simple", "prefill", "decode"]

_AT_LEAST_ZERO = ("num_prefill_engines", "num_decode_engines", "num_engines")
_AT_LEAST_ONE = (
    "tensor_parallel_size",
    "cpu_num_slabs",
    "cpu_slab_size_bytes",
    "model_cache_size",
    "device_memory_bytes",
)


@dataclass(frozen=True)
class NodeConfig:
    """Checked when it is made; raises ConfigError. Sizes are bytes, None is sized from the machine.

    An engine is ``tensor_parallel_size`` workers, each with a device of its own and a share of
    every model. ``num_engines`` engines prefill and decode; or ``num_prefill_engines`` take prompts
    to their first token and ``num_decode_engines`` go on from there, with the KV left in host
    slabs. They may be on different nodes; the KV goes over the network then.

    ``cpu_num_slabs`` slabs of ``cpu_slab_size_bytes`` hold KV in host memory, ``model_cache_size``
    is the upper bound of the weight cache, ``device_memory_bytes`` the pool of each worker's
    device where that is host memory. Slabs and weight cache are files under ``shm_dir``.
    """

    node_id: str
    num_prefill_engines: int
    num_decode_engines: int
    num_engines: int = 0
    tensor_parallel_size: int = 1
    cpu_num_slabs: int | None = None
    cpu_slab_size_bytes: int | None = None
    model_cache_size: int | None = None
    cached_models: tuple[ModelSpec, ...] | list[ModelSpec] = ()
    #: YAML file that the cached models come from; a setting in it that cannot be met is refused.
    config_path: str | None = None
    device_memory_bytes: int | None = None
    shm_dir: str = DEFAULT_SHM_DIR

    def __post_init__(self) -> None:
        object.__setattr__(self, "cached_models", tuple(self.cached_models))
        if not isinstance(self.node_id, str) or not 1 <= len(self.node_id) <= 128:
            raise self._error("node_id", "expected 1 to 128 characters")
        for name in (*_AT_LEAST_ZERO, *_AT_LEAST_ONE):
            self._check_number(name, 0 if name in _AT_LEAST_ZERO else 1)
        self._check_engines()
        for index, spec in enumerate(self.cached_models):
            if not isinstance(spec, ModelSpec):
                raise self._error(f"cached_models[{index}]", f"expected a ModelSpec, got {spec!r}")
        if self.config_path is not None:
            path = Path(self.config_path)
            refuse_unsupported(load_config(path), str(path))

    @property
    def engine_roles(self) -> tuple[EngineRole, ...]:
        """What each engine is for; those of workers are ``worker_roles``."""
        numbers: dict[EngineRole, int] = {
            "simple": self.num_engines,
            "prefill": self.num_prefill_engines,
            "decode": self.num_decode_engines,
        }
        return tuple(role for role, number in numbers.items() for _ in range(number))

    @property
    def worker_roles(self) -> tuple[EngineRole, ...]:
        """What the engine of each worker is for, by the worker's index."""
        return tuple(role for role in self.engine_roles for _ in range(self.tensor_parallel_size))

    def _check_number(self, name: str, least: int) -> None:
        value = getattr(self, name)
        optional = next(f for f in fields(self) if f.name == name).default is None
        if value is None and optional:
            return
        if type(value) is not int or value < least:
            raise self._error(name, f"expected an integer of at least {least}, got {value!r}")

    def _check_engines(self) -> None:
        prefill, decode = self.num_prefill_engines, self.num_decode_engines
        if self.num_engines and (prefill or decode):
            raise self._error(
                "num_engines", "excludes num_prefill_engines and num_decode_engines; set both to 0"
            )
        if not self.engine_roles:
            raise self._error("num_engines", "expected at least 1 engine")

    def _error(self, field: str, problem: str) -> ConfigError:
        return ConfigError(
            f"NodeConfig {self.node_id!r}: {field}: {problem}", metadata={"field": field}
        )
