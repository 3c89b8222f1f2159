"""Settings that load, so that existing files do, but that this release cannot act on."""

from __future__ import annotations

from aegaeon.config.schema import AegaeonConfig
from aegaeon.errors import ConfigError, ErrorReason


def refuse_unsupported(config: AegaeonConfig, source: str) -> None:
    """Raise ConfigError naming every setting that would have to be ignored."""
    found = [
        *(f"server.{name}" for name in _server_settings(config)),
        *(f"models[{i}].profile" for i, model in enumerate(config.models) if model.profile),
        *(f"devices[{i}].profile" for i, device in enumerate(config.devices) if device.profile),
    ]
    if found:
        raise ConfigError(
            f"{source}: not supported yet: {', '.join(found)}; remove "
            f"{'it' if len(found) == 1 else 'them'} from the file (step times are learnt while "
            "serving, no profile is needed)",
            reason=ErrorReason.INVALID_FIELD,
            metadata={"field": ",".join(found)},
        )


def _server_settings(config: AegaeonConfig) -> list[str]:
    server = config.server
    asked = {
        "tensor_parallel_size": server.tensor_parallel_size > 1,
        "memory_utilization": _given(config, "memory_utilization"),
        "dummy_weights": server.dummy_weights,
        "cuda_graph": server.cuda_graph not in (None, False),
    }
    return [name for name, value in asked.items() if value]


def _given(config: AegaeonConfig, name: str) -> bool:
    return name in config.server.model_fields_set
