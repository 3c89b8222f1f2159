"""Settings that load, so that existing files do, but that this release cannot act on."""

from __future__ import annotations

from aegaeon.config.schema import AegaeonConfig
from aegaeon.errors import ConfigError, ErrorReason


def refuse_unsupported(config: AegaeonConfig, source: str) -> None:
    """Raise ConfigError naming every setting that would have to be ignored."""
    found = [
        *(f"server.{name}" for name in _server_settings(config)),
        *(f"models[{i}].profile" for i in _models_with_profiles(config)),
    ]
    if found:
        raise ConfigError(
            f"{source}: not supported yet: {', '.join(found)}; remove "
            f"{'it' if len(found) == 1 else 'them'} from the file",
            reason=ErrorReason.INVALID_FIELD,
            metadata={"field": ",".join(found)},
        )


def _models_with_profiles(config: AegaeonConfig) -> list[int]:
    """They name rows of a device's profile, and mean nothing where there is none."""
    if any(device.profile for device in config.devices):
        return []
    return [index for index, model in enumerate(config.models) if model.profile]


def _server_settings(config: AegaeonConfig) -> list[str]:
    server = config.server
    asked = {
        "memory_utilization": _given(config, "memory_utilization"),
        "dummy_weights": server.dummy_weights,
        "cuda_graph": server.cuda_graph not in (None, False),
    }
    return [name for name, value in asked.items() if value]


def _given(config: AegaeonConfig, name: str) -> bool:
    return name in config.server.model_fields_set
