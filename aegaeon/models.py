"""Models as the YAML file lists them."""

from aegaeon.model_registry import set_model_registry
from aegaeon.model_spec import ModelSpec

__all__ = ["ModelSpec", "set_model_registry"]
