"""What the text of an answer must be."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class ConstraintKind(enum.Enum):
    """How the text of a constraint is read; values are the names of the contract's fields."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Constraint:
    """Makes every new token one that leads to a text of this form, and ends the sequence with it.

    Checked when a request is served. `docs/structured-output.md` says what each kind may hold.
    """

    kind: ConstraintKind
    text: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> Constraint:
        """One JSON value of a schema, which may be given as JSON text."""
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        return cls(ConstraintKind.JSON_SCHEMA, text)

    @classmethod
    def json_object(cls) -> Constraint:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Constraint:
        """A text that a regular expression matches as a whole."""
        return cls(ConstraintKind.REGEX, pattern)

    @classmethod
    def grammar(cls, rules: str) -> Constraint:
        """A text of a context-free grammar, whose rules are written as Lark has them."""
        return cls(ConstraintKind.GRAMMAR, rules)

    @classmethod
    def choice(cls, texts: Iterable[str]) -> Constraint:
        """One of some texts."""
        options = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        return cls.grammar(f"start: {options}")
