"""Reading the YAML file; every error names file, line, key path, and the nearest valid key."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from aegaeon.config.schema import (
    AegaeonConfig,
    DeviceEntry,
    ModelEntry,
    SecuritySection,
    ServerSection,
)
from aegaeon.config.yaml_source import KeyPath, YamlDocument, format_path, parse_yaml
from aegaeon.errors import ConfigError

_SECTIONS: dict[str, type[BaseModel]] = {
    "server": ServerSection,
    "models": ModelEntry,
    "devices": DeviceEntry,
    "security": SecuritySection,
}
# What pydantic's error types expect, in the words of a YAML file.
_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def config_path() -> Path | None:
    """The file that ``AEGAEON_CONFIG_PATH`` names; None when it is unset or empty."""
    value = os.environ.get("AEGAEON_CONFIG_PATH")
    return Path(value) if value else None


def load_config(path: str | os.PathLike[str]) -> AegaeonConfig:
    """Read and check a file. Raises ConfigError."""
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: is not UTF-8 text (byte {error.start})") from error
    document = parse_yaml(text, str(source))
    if document.value is None:
        raise ConfigError(f"{source}: is empty; it needs the sections server and models")
    if not isinstance(document.value, dict):
        raise ConfigError(
            f"{source}:1: expected a mapping with the sections {', '.join(_SECTIONS)}, got "
            f"{_describe(document.value)}"
        )
    try:
        return AegaeonConfig.model_validate(document.value)
    except ValidationError as error:
        problems = [_explain(problem, document, source) for problem in error.errors()]
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None


def _explain(problem: ErrorDetails, document: YamlDocument, source: Path) -> str:
    path = _present_path(problem["loc"], document.value)
    line = document.line(path)
    where = f"{source}:{line}" if line else str(source)
    key = format_path(path)
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key {key}{_nearest(path)}"
    if problem["type"] == "missing":
        return f"{where}: {format_path(tuple(problem['loc']))} is required"
    if problem["type"] == "value_error":
        text = str(problem["ctx"]["error"])
        return f"{where}: {key}: {text}" if key else f"{where}: {text}"
    expected = _EXPECTED.get(problem["type"])
    given = _describe(problem["input"])
    if expected:
        return f"{where}: {key}: expected {expected}, got {given}"
    reason = problem["msg"].replace("Input should be", "should be")
    return f"{where}: {key}: {reason}, got {given}{_nearest_value(problem)}"


def _present_path(location: tuple[int | str, ...], value: Any) -> KeyPath:
    """The part of a pydantic location that exists in the file; it also names union members."""
    path: list[int | str] = []
    for part in location:
        inside = isinstance(value, dict) and part in value
        inside = inside or (isinstance(value, list) and isinstance(part, int))
        if not inside:
            break
        value = value[part]
        path.append(part)
    return tuple(path)


def _nearest(path: KeyPath) -> str:
    section = _SECTIONS.get(str(path[0])) if len(path) > 1 else None
    valid = list(section.model_fields) if section else list(_SECTIONS)
    close = difflib.get_close_matches(str(path[-1]), valid, n=1)
    return f"; did you mean {close[0]}?" if close else f"; valid keys: {', '.join(valid)}"


def _nearest_value(problem: ErrorDetails) -> str:
    if problem["type"] != "literal_error" or not isinstance(problem["input"], str):
        return ""
    valid = [
        word.strip("'") for word in problem["ctx"]["expected"].replace(" or ", ", ").split(", ")
    ]
    close = difflib.get_close_matches(problem["input"], valid, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _describe(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    kinds |= {list: "list", dict: "mapping"}
    kind = kinds.get(type(value), type(value).__name__)
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({kind})"
