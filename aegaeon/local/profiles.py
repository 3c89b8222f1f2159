"""Measured step times that a configuration names, as flags of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aegaeon.config.load import load_config
from aegaeon.node_config import NodeConfig


def profile_flags(nodes: Sequence[NodeConfig]) -> list[str]:
    """``--profile`` for every device's file, which is relative to the YAML file that names it, and
    ``--profile-name`` for every model whose rows have another name. Raises ConfigError.
    """
    flags: dict[tuple[str, str], None] = {}
    for source in dict.fromkeys(node.config_path for node in nodes if node.config_path):
        config, folder = load_config(source), Path(source).absolute().parent
        for device in config.devices:
            if device.profile:
                flags["--profile", str(folder / device.profile)] = None
        for model in config.models:
            if model.profile:
                flags["--profile-name", f"{model.name}={model.profile}"] = None
    return [part for flag in flags for part in flag]
