"""JSON types that a tool's schema allows its arguments, for calls that do not show them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Never

from aegaeon.http.messages import Tool

#: As JSON schemas name them; an integer is a number as well.
ALL_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
#: References and combinations that are followed.
_MAX_DEPTH = 16
_ANY: Mapping[str, Any] = {}
#: How models that were trained on Python write these.
_WORDS = {"none": "null", "true": "true", "false": "false"}


class ArgumentTypes:
    """Of one tool."""

    def __init__(self, tool: Tool | None) -> None:
        self.root: Any = tool.function.parameters if tool is not None else None
        #: By the identity of a schema within the root; each is looked at once.
        self._known: dict[int, frozenset[str]] = {}

    def of(self, name: str) -> frozenset[str]:
        """Types of an argument; all of them where the schema does not say."""
        root = resolved(self.root, self.root)
        properties = root.get("properties")
        if isinstance(properties, dict) and name in properties:
            return self.allowed(properties[name])
        return self.allowed(root.get("additionalProperties"))

    def allowed(self, schema: Any, depth: int = 0) -> frozenset[str]:
        """JSON types of values that a schema, a part of the root, may allow."""
        schema = resolved(schema, self.root)
        if depth > _MAX_DEPTH:
            return ALL_TYPES
        if id(schema) not in self._known:
            self._known[id(schema)] = ALL_TYPES  # what it is within itself
            self._known[id(schema)] = self._allowed(schema, depth)
        return self._known[id(schema)]

    def _allowed(self, schema: Mapping[str, Any], depth: int) -> frozenset[str]:
        found = ALL_TYPES
        if (named := schema.get("type")) is not None:
            found &= _widened(named if isinstance(named, list) else [named])
        if isinstance(values := schema.get("enum"), list):
            found &= frozenset(map(type_of, values))
        if "const" in schema:
            found &= {type_of(schema["const"])}
        for key in ("anyOf", "oneOf"):
            if isinstance(members := schema.get(key), list):
                found &= frozenset().union(*(self.allowed(one, depth + 1) for one in members))
        if isinstance(members := schema.get("allOf"), list):
            for one in members:
                found &= self.allowed(one, depth + 1)
        return found


def resolved(schema: Any, root: Any) -> Mapping[str, Any]:
    """The schema that a reference leads to; an empty one, which allows all, if that is nowhere."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, dict):
            return _ANY
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        schema = _at(reference, root)
    return _ANY


def type_of(value: Any) -> str:
    """The JSON type of a value that JSON was read into."""
    if isinstance(value, float) and value.is_integer():
        return "integer"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return "null" if value is None else kinds.get(type(value), "object")


def as_json(text: str, types: frozenset[str]) -> str:
    """JSON text of an argument that was written without quotes: a value of one of the other types
    if it is one, else a string."""
    plain = text.strip()
    plain = _WORDS.get(plain.lower(), plain)
    if types != {"string"}:
        try:
            value = json.loads(plain, parse_constant=_no_json)
        except (ValueError, RecursionError):
            return json.dumps(text, ensure_ascii=False)
        if type_of(value) in types - {"string"}:
            return plain
    return json.dumps(text, ensure_ascii=False)


def _widened(names: list[Any]) -> frozenset[str]:
    found = frozenset(name for name in names if isinstance(name, str))
    return found | {"integer"} if "number" in found else found


def _at(reference: str, root: Any) -> Any:
    """Where a JSON pointer within the document leads."""
    place = root
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(place, dict) or key not in place:
            return None
        place = place[key]
    return place


def _no_json(word: str) -> Never:
    raise ValueError(f"{word} is not JSON")
