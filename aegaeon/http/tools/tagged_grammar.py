"""Calls that are written as tags, with arguments of a tool's schema, as rules of a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aegaeon.grammars import lark_schema
from aegaeon.http.errors import ApiError, unsupported
from aegaeon.http.messages import Tool
from aegaeon.http.tools.argument_types import ArgumentTypes, resolved, type_of
from aegaeon.http.tools.tagged_scanner import FUNCTION
from aegaeon.http.tools.text_patterns import FORMATS, whole_pattern

#: A string without limits, up to the end of its tag. It is over at the first such tag.
_ANY_TEXT = "text"
_END = "</parameter>"
_DEFINITIONS = ("$defs", "definitions")
_REMARKS = {"title", "description", "default", "examples", "deprecated", "$comment", *_DEFINITIONS}
_OF_OBJECTS = {"type", "properties", "required", "additionalProperties", "$schema", "$id"}
_COUNTS = {"minProperties", "maxProperties"}
#: What says more about strings than their type, length, pattern and format.
_OF_STRINGS = {"contentEncoding", "contentMediaType", "contentSchema"}
_COMBINED = {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "enum", "const"}
_MAX_DEPTH = 16


def text_rules() -> list[str]:
    """What the rules of all calls share."""
    return _text_rule(_ANY_TEXT, 0, None)


def tagged_rules(number: int, tool: Tool) -> list[str]:
    """Rules whose ``call_NUMBER`` is a call of the tool, and ``inside_NUMBER`` what follows its
    name. Raises ApiError for a schema that says more than they can."""
    return _Rules(number, tool).made()


def free_rules(number: int, tool: Tool) -> list[str]:
    """The same with arguments of any names, which are any text."""
    argument = f"argument_{number}"
    return [
        f'{argument}: "<parameter=" /[^>\\n<]{{1,256}}/ ">\\n" {_ANY_TEXT} "\\n"',
        f'inside_{number}: {argument}* "</function>"',
        _call_rule(number, tool),
    ]


class _Rules:
    """Of one tool."""

    def __init__(self, number: int, tool: Tool) -> None:
        self._number = number
        self._tool = tool
        self._types = ArgumentTypes(tool)
        self._schema = self._followed(self._types.root, "a $ref with more beside it")
        self._rules: list[str] = []

    def made(self) -> list[str]:
        parts = []
        required = self._names("required")
        for position, name in enumerate(self._written(required)):
            rule = f"argument_{self._number}_{position}"
            opening = _literal(f"<parameter={name}>\n")
            alternatives = " | ".join(self._value(name, self._property(name), rule))
            self._rules.append(f'{rule}: {opening} ({alternatives}) "\\n"')
            parts.append(rule if name in required else f"{rule}?")
        parts.append('"</function>"')
        inside = f"inside_{self._number}: {' '.join(parts)}"
        return [*self._rules, inside, _call_rule(self._number, self._tool)]

    def _written(self, required: list[str]) -> list[str]:
        """Arguments in their order, those that are required and have no schema last."""
        if "object" not in self._types.allowed(self._schema):
            raise self._refused("the type")
        unknown = self._schema.keys() - _REMARKS - _OF_OBJECTS - _COUNTS
        if unknown:
            raise self._refused(min(unknown))
        names = [*self._properties(), *required]
        least, most = self._schema.get("minProperties", 0), self._schema.get("maxProperties")
        if most == 0:
            names = []
        elif most is not None and most < len(set(names)):
            raise self._refused("maxProperties")
        if least > len(set(required)):
            raise self._refused("minProperties")
        for name in names:
            if ">" in name or "\n" in name:
                raise self._refused(f"properties[{name!r}]")
        return list(dict.fromkeys(names))

    def _value(self, name: str, schema: Any, rule: str, depth: int = 0) -> list[str]:
        """Ways to write a value, each with the end of its tag."""
        types = self._types.allowed(schema)
        if "string" not in types:
            return [self._json(schema)]
        schema = self._followed(schema, f"properties[{name!r}], where a $ref has more beside it,")
        keys = schema.keys() - _REMARKS
        refused = keys & _OF_STRINGS
        if refused:
            raise self._refused(f"properties[{name!r}].{min(refused)}")
        if keys in ({"anyOf"}, {"oneOf"}) and depth < _MAX_DEPTH:
            members = enumerate(schema[min(keys)])
            found = [self._value(name, one, f"{rule}_{i}", depth + 1) for i, one in members]
            return [way for ways in found for way in ways]
        if keys in ({"enum"}, {"enum", "type"}, {"const"}, {"const", "type"}):
            return self._listed(name, schema)
        if keys & _COMBINED:
            raise self._refused(f"properties[{name!r}].{min(keys & _COMBINED)}")
        others = types - {"string"} - ({"integer"} if "number" in types else set())
        ways = [self._text(name, schema, rule)]
        if others:
            ways.append(self._json({**schema, "type": sorted(others)}))
        return ways

    def _listed(self, name: str, schema: Mapping[str, Any]) -> list[str]:
        values = schema.get("enum", [schema.get("const")])
        texts = [value for value in values if isinstance(value, str)]
        if any(_END in text for text in texts):
            raise self._refused(f"properties[{name!r}].enum")
        types = self._types.allowed(schema)
        others = [v for v in values if not isinstance(v, str) and type_of(v) in types]
        ways = [_literal(f"{text}\n{_END}") for text in texts]
        return [*ways, self._json({"enum": others})] if others else ways

    def _text(self, name: str, schema: Mapping[str, Any], rule: str) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        patterns = []
        if "format" in schema:
            patterns.append(FORMATS.get(schema["format"]))
        if "pattern" in schema:
            patterns.append(whole_pattern(schema["pattern"]))
        if None in patterns:
            which = "format" if patterns[0] is None and "format" in schema else "pattern"
            raise self._refused(f"properties[{name!r}].{which}")
        if not (least or patterns) and most is None:
            return _ANY_TEXT
        self._rules += _text_rule(f"{rule}_text", least, most, *map(str, patterns))
        return f"{rule}_text"

    def _json(self, schema: Mapping[str, Any]) -> str:
        root = self._types.root if isinstance(self._types.root, dict) else {}
        shared = {key: root[key] for key in _DEFINITIONS if key in root}
        if not all(map(_is_shared, _references({**shared, **schema}))):
            raise self._refused("a $ref to other places than $defs")
        return f"{lark_schema({**shared, **schema})} {_literal(chr(10) + _END)}"

    def _followed(self, schema: Any, where: str) -> Mapping[str, Any]:
        """What a reference leads to, if that is all there is."""
        if isinstance(schema, dict) and "$ref" in schema and schema.keys() - _REMARKS - {"$ref"}:
            raise self._refused(where)
        return resolved(schema, self._types.root)

    def _property(self, name: str) -> Any:
        return self._properties().get(name, self._schema.get("additionalProperties"))

    def _properties(self) -> Mapping[str, Any]:
        found = self._schema.get("properties")
        return found if isinstance(found, dict) else {}

    def _names(self, key: str) -> list[str]:
        found = self._schema.get(key)
        return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []

    def _refused(self, where: str) -> ApiError:
        return unsupported(
            "tools",
            f"function {self._tool.function.name!r}: calls of this model cannot be held to {where} "
            "of its parameters, as it writes strings without quotes",
        )


def _call_rule(number: int, tool: Tool) -> str:
    opening = _literal(f"{FUNCTION}{tool.function.name}>\n")
    return f"call_{number}: {opening} inside_{number}"


def _text_rule(name: str, least: int, most: int | None, *patterns: str) -> list[str]:
    """A string of so many characters that matches expressions, with the end of its tag."""
    count = f"{{{least},{'' if most is None else most}}}"
    terminal = name.upper()
    forms = [rf"/(?s:.{count})\n/", *(rf"/(?:{pattern})\n/" for pattern in patterns)]
    forms.append(r"~/(?s:.*<\/parameter>.*)/")
    return [f'{name}[suffix="{_END}"]: {terminal}', f"{terminal}: {' & '.join(forms)}"]


def _references(schema: Any) -> list[str]:
    """All of them; some may be values of an `enum`."""
    found, waiting = [], [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
            if isinstance(reference := one.get("$ref"), str):
                found.append(reference)
        elif isinstance(one, list):
            waiting += one
    return found


def _is_shared(reference: str) -> bool:
    """It leads to where it did, in a part of the schema with the definitions."""
    return reference.startswith(tuple(f"#/{key}/" for key in _DEFINITIONS))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
