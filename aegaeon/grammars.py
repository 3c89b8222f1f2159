"""Constraints as grammars of llguidance, and whether they are any good.

Needs neither torch nor a tokenizer: the scheduler checks what workers will compile.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from aegaeon.constraint import Constraint, ConstraintKind
from aegaeon.errors import InvalidRequestError

#: Between the parts of a JSON value: a space, or a line break with an indentation. White space
#: without bounds is legal JSON, and models at a loss go on with it until their limit.
JSON_WHITESPACE = r"( |\n[ \t]{0,32})"
MAX_BYTES = 256 * 1024
#: What one constraint may cost. A step of the fuels takes some tens of milliseconds; a state 2 KB.
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=20_000,
    max_lexer_states=50_000,
    max_grammar_size=50_000,
    verbose_errors=False,
)
_MAX_PROBLEM_CHARACTERS = 400
#: What a matcher says of a place that no token leads on from.
_DEAD_END = "NoExtensionBias"


def grammar_of(constraint: Constraint) -> str:
    """The grammar. Raises ValueError for a schema that is no JSON object."""
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(
                _schema(constraint.text), overrides={"whitespace_pattern": JSON_WHITESPACE}
            )
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(constraint.text)
        case ConstraintKind.GRAMMAR:
            return LLMatcher.grammar_from_lark(constraint.text)


def lark_schema(schema: Mapping[str, Any]) -> str:
    """A JSON value of a schema, as a part of a Lark rule."""
    options = {"whitespace_pattern": JSON_WHITESPACE}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def check_constraint(constraint: Constraint) -> None:
    """Raise InvalidRequestError with the problem, if there is one.

    Takes up to a second of a processor for hostile ones, without Python's lock; answers about
    constraints that were seen before come at once.
    """
    size = len(constraint.text.encode(errors="surrogatepass"))
    problem = f"has {size} bytes, at most {MAX_BYTES} are taken" if size > MAX_BYTES else None
    problem = problem or _problem(constraint)
    if problem is not None:
        field = f"sampling.constraint.{constraint.kind.value}"
        raise InvalidRequestError(f"{field}: {problem}", metadata={"field": field})


@functools.lru_cache(maxsize=256)
def _problem(constraint: Constraint) -> str | None:
    try:
        grammar = grammar_of(constraint)
    except ValueError as error:  # of JSON and of encodings, too
        return str(error)
    except RecursionError:
        return "the schema is nested too deeply"
    wrong, problems = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    if not wrong:
        return None
    text = problems[0].strip() or "it cannot be compiled"
    return text if len(text) <= _MAX_PROBLEM_CHARACTERS else text[:_MAX_PROBLEM_CHARACTERS] + " …"


def matcher_problem(matcher: LLMatcher) -> str:
    """Why a form cannot be followed, or followed any further."""
    problem = str(matcher.get_error()).strip().partition("\n")[0]
    if problem == _DEAD_END:
        return "no token leads on to a complete text, as where a rule or a $ref leads to itself"
    return problem


def _schema(text: str) -> str:
    """JSON text of a schema that is an object, without settings of the compiler's own."""
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise ValueError("a JSON schema must be an object here")
    schema.pop("x-guidance", None)
    return json.dumps(schema, ensure_ascii=False)
