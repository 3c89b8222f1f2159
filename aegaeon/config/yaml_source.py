"""A YAML document with the line of every key, and without silently dropped duplicate keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from aegaeon.errors import ConfigError

KeyPath = tuple[str | int, ...]

_MAX_VALUES = 100_000


@dataclass(frozen=True)
class YamlDocument:
    """Plain values, and line numbers (from 1) by key path."""

    value: Any
    lines: dict[KeyPath, int]

    def line(self, path: KeyPath) -> int | None:
        """Line of the key, or of the nearest enclosing key."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


def parse_yaml(text: str, source: str) -> YamlDocument:
    """Parse one document. ``source`` names it in errors. Raises ConfigError."""
    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:  # characters that YAML does not have
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    try:
        root = loader.get_single_node()
        lines: dict[KeyPath, int] = {}
        if root is not None:
            _index(root, (), lines, source)
        value = loader.construct_document(root) if root is not None else None
    except RecursionError:
        raise ConfigError(f"{source}: is nested too deeply, or an alias contains itself") from None
    except ValueError as error:  # such as a date that does not exist
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    except yaml.MarkedYAMLError as error:
        where = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{source}{where}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    finally:
        loader.dispose()
    return YamlDocument(value, lines)


def _index(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], source: str) -> None:
    if isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            _require_few(lines, source)
            lines[(*path, position)] = item.start_mark.line + 1
            _index(item, (*path, position), lines, source)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            line = key.start_mark.line + 1
            if name in seen and name != "<<":
                raise ConfigError(
                    f"{source}:{line}: {format_path((*path, name))} is given twice, first in line "
                    f"{seen[name]}; remove one"
                )
            _require_few(lines, source)
            seen[name] = line
            lines[(*path, name)] = line
            _index(value, (*path, name), lines, source)


def _require_few(lines: dict[KeyPath, int], source: str) -> None:
    """Aliases of aliases make a few lines of text into more values than fit into memory."""
    if len(lines) >= _MAX_VALUES:
        raise ConfigError(f"{source}: holds more than {_MAX_VALUES} values, aliases written out")


def format_path(path: KeyPath) -> str:
    """``("models", 0, "name")`` as ``models[0].name``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
