"""Configuration: the YAML file, and what a model's own files say."""

from aegaeon.config.load import config_path, load_config
from aegaeon.config.model_config import ModelConfig, get_model_config
from aegaeon.config.schema import AegaeonConfig, DeviceEntry, ModelEntry, ServerSection
from aegaeon.errors import ConfigError

__all__ = [
    "AegaeonConfig",
    "ConfigError",
    "DeviceEntry",
    "ModelConfig",
    "ModelEntry",
    "ServerSection",
    "config_path",
    "get_model_config",
    "load_config",
]
