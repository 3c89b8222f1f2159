"""Aegaeon: token-level multi-model LLM serving over gRPC."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aegaeon.constraint import Constraint
    from aegaeon.node_config import NodeConfig
    from aegaeon.request import Request
    from aegaeon.sampling import SamplingParams
    from aegaeon.service import LLMService
    from aegaeon.step_output import StepOutput

__all__ = ["Constraint", "LLMService", "NodeConfig", "Request", "SamplingParams", "StepOutput"]

# Resolved on first use: daemons and tools that need only the contract or the error family do not
# pay for the client.
_HOMES = {
    "Constraint": "aegaeon.constraint",
    "LLMService": "aegaeon.service",
    "NodeConfig": "aegaeon.node_config",
    "Request": "aegaeon.request",
    "SamplingParams": "aegaeon.sampling",
    "StepOutput": "aegaeon.step_output",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'aegaeon' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
