"""Checks of what a service is made with."""

from __future__ import annotations

from collections.abc import Sequence

from aegaeon.errors import ConfigError
from aegaeon.node_config import NodeConfig

_MAX_WINDOW_S = 86_400


def check_patience(resume_window_s: float, daemon_restarts: int) -> None:
    """Raise ConfigError for budgets out of their bounds."""
    if not 0 <= resume_window_s <= _MAX_WINDOW_S:
        raise ConfigError(
            f"resume_window_s = {resume_window_s}: expected 0 to {_MAX_WINDOW_S} seconds"
        )
    if daemon_restarts < 0:
        raise ConfigError(f"daemon_restarts = {daemon_restarts}: expected at least 0")


def check_arguments(nodes: Sequence[NodeConfig], address: str | None) -> None:
    """Raise ConfigError for nodes that cannot be, before anything is started."""
    for index, node in enumerate(nodes):
        if not isinstance(node, NodeConfig):
            raise ConfigError(f"cluster_config[{index}]: expected a NodeConfig, got {node!r}")
        for spec in node.cached_models:
            spec.path()  # before daemons are started for a model that is not there
    ids = [node.node_id for node in nodes]
    for node_id in ids:
        if ids.count(node_id) > 1:
            raise ConfigError(f"cluster_config: node_id {node_id!r} is given twice")
    if not nodes and address is None:
        raise ConfigError(
            "LLMService needs a NodeConfig to start daemons here, or address= or AEGAEON_ADDRESS "
            "to attach to a running scheduler"
        )
