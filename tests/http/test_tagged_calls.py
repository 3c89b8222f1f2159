"""Calls that are written as tags: read with the types of their tool, however the text is cut, and
held to its schema by a grammar."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from aegaeon.constraint import Constraint
from aegaeon.grammars import check_constraint, grammar_of
from aegaeon.http.errors import ApiError
from aegaeon.http.messages import Tool
from aegaeon.http.tools.argument_types import ArgumentTypes
from aegaeon.http.tools.families import QWEN_CODER
from aegaeon.http.tools.parser import CallParser
from aegaeon.http.tools.tagged_grammar import tagged_rules, text_rules
from aegaeon.http.tools.tagged_scanner import TaggedScanner

FIELDS: dict[str, Any] = {
    "text": {"type": "string"},
    "whole": {"type": "integer"},
    "share": {"type": "number"},
    "yes": {"type": "boolean"},
    "some": {"type": "array"},
    "more": {"$ref": "#/$defs/more"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "either": {"type": ["integer", "string"]},
    "short": {"type": "string", "minLength": 1, "maxLength": 3},
    "unit": {"enum": ["C", "°F", 3, None]},
    "any": {},
}
PLAIN = st.text(alphabet="ab\n <>/\"\\{}é首😀=1,:'", max_size=12)
#: Texts that could be values of another type are these; they are told apart by the schema alone.
WORDS = PLAIN.filter(lambda text: text.strip().lower() not in ("none", "true", "false", "null"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | PLAIN,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(PLAIN, inner, max_size=2),
    max_leaves=4,
)
LETTERS = st.text("abé首", min_size=1, max_size=9)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": PLAIN,
    "whole": st.integers(),
    "share": st.floats(allow_nan=False, allow_infinity=False),
    "yes": st.booleans(),
    "some": st.lists(JSON, max_size=3),
    "more": st.dictionaries(PLAIN, JSON, max_size=3),
    "maybe": WORDS | st.none(),
    "either": st.integers() | LETTERS,
    "short": st.text("a\n<é", min_size=1, max_size=3),
    "unit": st.sampled_from(["C", "°F", 3, None]),
    "any": LETTERS | st.integers() | st.booleans(),
}


def tool(properties: Mapping[str, Any], required: Sequence[str] = (), **more: Any) -> Tool:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "$defs": {"more": {"type": "object"}},
        **more,
    }
    return Tool.model_validate(
        {"type": "function", "function": {"name": "f", "parameters": schema}}
    )


FULL = tool(FIELDS)


def written(arguments: Mapping[str, Any]) -> str:
    """As the model's chat template does it."""
    parts = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append(f"<parameter={name}>\n{text}\n</parameter>\n")
    return f"<tool_call>\n<function=f>\n{''.join(parts)}</function>\n</tool_call>"


def parse(pieces: Sequence[str], of: Tool = FULL) -> tuple[str, list[tuple[str, str]]]:
    """Text, and names with arguments."""
    scanner = partial(TaggedScanner, {"f": ArgumentTypes(of)})
    parser = CallParser(QWEN_CODER.marks, bare=["<function=f>"], scanner=scanner)
    text, calls = "", []
    for parts in [*map(parser.feed, pieces), parser.finish()]:
        text += parts.text
        for part in parts.calls:
            if part.name is not None:
                calls.append([part.name, ""])
            calls[part.index][1] += part.arguments
    return text, [(name, arguments) for name, arguments in calls]


def cut(text: str, points: Sequence[int]) -> list[str]:
    ends = sorted({point % (len(text) + 1) for point in points} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


#: What confusing texts are made of.
PIECES = [
    *"<tool_call>/=f\n x[{1",
    *("<tool_call>", "</tool_call>", "<function=f>", "<function=", "</function>"),
    *("<parameter=text>", "<parameter=whole>", "</parameter>"),
]
ARGUMENTS = st.fixed_dictionaries({}, optional=VALUES)
POINTS = st.lists(st.integers(0, 10_000), max_size=20)


@given(calls=st.lists(ARGUMENTS, max_size=3), points=POINTS)
def test_what_is_written_is_read_however_it_is_cut(
    calls: list[dict[str, Any]], points: list[int]
) -> None:
    text, found = parse(cut("\n".join(map(written, calls)), points))
    assert text == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == [
        ("f", arguments) for arguments in calls
    ]


@given(
    text=st.lists(
        st.sampled_from(PIECES),
        max_size=25,
    ),
    points=POINTS,
)
def test_any_text_is_the_same_however_it_is_cut(text: list[str], points: list[int]) -> None:
    whole = "".join(text)
    assert parse(cut(whole, points)) == parse([whole]) == parse(list(whole))


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        # On one line, and without what ends it.
        (
            "<tool_call><function=f><parameter=text>a</parameter></function></tool_call>",
            "",
            '{"text": "a"}',
        ),
        ("<tool_call><function=f><parameter=whole>1</parameter></tool_call>", "", '{"whole": 1}'),
        # Cut by the limit of tokens: what there is of it.
        ("<tool_call>\n<function=f>\n<parameter=text>\nab", "", '{"text": "ab'),
        ("<tool_call>\n<function=f>\n<parameter=whole>\n1", "", '{"whole": '),
        # What Python writes.
        (
            "<tool_call><function=f><parameter=yes>\nTrue\n</parameter></function>",
            "",
            '{"yes": true}',
        ),
        (
            "<tool_call><function=f><parameter=maybe>None</parameter></function>",
            "",
            '{"maybe": null}',
        ),
        # Text where there should be none, and a name that the schema does not have.
        ("<tool_call><function=f><parameter=whole>x</parameter></function>", "", '{"whole": "x"}'),
        (
            "<tool_call><function=f><parameter=whole>NaN</parameter></function>",
            "",
            '{"whole": "NaN"}',
        ),
        ("<tool_call><function=f><parameter=b>[1]</parameter></function>", "", '{"b": [1]}'),
        # No name, so no parameter.
        (
            f"<tool_call><function=f><parameter={'x' * 2000}>1</parameter></function></tool_call>",
            "",
            "{}",
        ),
        # Without the mark before it, if it is a tool's name.
        ("So:\n<function=f>\n</function>\n</tool_call>", "So:", "{}"),
        ("See <function=g>\n</function>", "See <function=g>\n</function>", None),
        ("See <function=f", "See <function=f", None),
        # No calls.
        ("Say <tool_call>\n{}", "Say <tool_call>\n{}", None),
        ("<tool_call><function=>", "<tool_call><function=>", None),
        ('<tool_call><function=a"b>', '<tool_call><function=a"b>', None),
        ("I see.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>", "I see.", "{}"),
    ],
)
def test_texts_and_calls_are_told_apart(text: str, content: str, arguments: str | None) -> None:
    calls = [] if arguments is None else [("f", arguments)]
    assert parse([text]) == parse(list(text)) == (content, calls)


def test_strings_come_as_they_are_made_and_other_values_when_they_are_complete() -> None:
    """A file that a coder writes is one argument."""
    begun = "<tool_call><function=f><parameter=text>\nab"
    assert parse([begun]) == ("", [("f", '{"text": "ab')])
    # What may be the end is held back.
    assert parse([begun, "c\n</para"]) == ("", [("f", '{"text": "abc')])
    assert parse([begun, "c\n</para", "gon"]) == ("", [("f", '{"text": "abc\\n</paragon')])
    number = "<tool_call><function=f><parameter=whole>\n12"
    assert parse([number]) == ("", [("f", '{"whole": ')])
    assert parse([number, "3\n</parameter>"]) == ("", [("f", '{"whole": 123')])


@pytest.mark.parametrize("of", ["text", "some", "x" * 10])
def test_time_is_linear(of: str) -> None:
    """A file that is one argument, token by token."""

    def measure(length: int) -> float:
        pieces = ["<tool_call><function=f>", f"<parameter={of}>", *["abc<"] * length]
        begun = time.process_time()
        parse(pieces)
        return time.process_time() - begun

    measure(1000)
    # Were it quadratic, it would be a hundred times as much.
    assert measure(40_000) < 60 * max(measure(4_000), 0.001)


def test_a_schema_that_holds_itself_is_read_in_little_time() -> None:
    one = {"$ref": "#/$defs/more"}
    more = {"more": {"anyOf": [{"anyOf": [one] * 9}, {"type": "array"}] * 9}}
    assert parse([written({"a": [1]})], tool({"a": one}, **{"$defs": more})) == (
        "",
        [("f", '{"a": [1]}')],
    )


class _Bytes:
    """A tokenizer of bytes."""

    def __init__(self) -> None:
        self.eos_token_id = 256
        self.bos_token_id = None
        self.tokens = [*(bytes([number]) for number in range(256)), b"<eos>"]
        self.special_token_ids = [256]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()))


def matches(of: Tool, text: str) -> bool:
    """Whether a required call may be this text."""
    constraint = Constraint.grammar(
        "\n".join(["start: call_0", *text_rules(), *tagged_rules(0, of)])
    )
    check_constraint(constraint)
    matcher = LLMatcher(TOKENIZER, grammar_of(constraint))
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def bare(arguments: Mapping[str, Any]) -> str:
    return written(arguments).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")


@given(arguments=ARGUMENTS)
def test_a_required_call_may_be_whatever_the_schema_allows(arguments: dict[str, Any]) -> None:
    ordered = {name: arguments[name] for name in FIELDS if name in arguments}
    # Two that JSON writes in a way that the grammar leaves out: escapes, and white space.
    for name in ("some", "more", "share", "any"):
        ordered.pop(name, None)
    assert matches(FULL, bare(ordered))


@pytest.mark.parametrize(
    ("properties", "arguments"),
    [
        ({"a": {"type": "integer", "maximum": 5}}, {"a": 6}),
        ({"a": {"type": "integer"}}, {"a": "x"}),
        ({"a": {"type": "string", "maxLength": 2}}, {"a": "abc"}),
        ({"a": {"type": "string", "minLength": 2}}, {"a": "a"}),
        ({"a": {"enum": ["x"]}}, {"a": "y"}),
        ({"a": {"type": "string", "format": "date"}}, {"a": "2026-13-01"}),
        ({"a": {"type": "string", "pattern": "^[ab]+$"}}, {"a": "abc"}),
        ({"a": {"type": "string", "pattern": r"^\d$"}}, {"a": "٣"}),
        ({"a": {"type": "string", "pattern": r"\$"}}, {"a": "5"}),
        ({"a": {"type": "string", "pattern": "^(a|b)", "maxLength": 2}}, {"a": "abc"}),
        ({"a": {"const": "x"}}, {"a": ""}),
        ({"a": {"type": ["boolean", "string"], "maxLength": 1}}, {"a": 12}),
        ({"a": {}, "b": {}}, {"b": 1, "a": 1}),
        ({"a": {}, "b": {}}, {"b": 1}),
        ({"a": {"type": "string"}}, {"a": "b</parameter>"}),
        ({"a": {"type": "string"}}, {"c": "b"}),
    ],
)
def test_a_required_call_is_nothing_else(
    properties: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert not matches(tool(properties, ["a"]), bare(arguments))


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"format": "date"}, ["2026-12-01"]),
        ({"format": "date-time"}, ["2026-12-01T01:02:03Z", "2026-12-01T01:02:03.5+01:00"]),
        ({"format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"]),
        ({"pattern": "b"}, ["abc", "b", "\nb\n"]),
        ({"pattern": "^b"}, ["b", "bc\n"]),
        ({"pattern": r"\$"}, ["5 $", "$\n"]),
        ({"pattern": r"^[/\]^|$]\d(a|b)/$"}, ["/1a/", "]2b/", "|3a/", "^4a/"]),
        ({"pattern": r"^\\$"}, ["\\"]),
        ({"pattern": "^a\\\nb\n/$"}, ["a\nb\n/"]),
        ({"pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}, ["ab", "abc"]),
    ],
)
def test_strings_have_their_pattern_and_format(schema: dict[str, Any], texts: list[str]) -> None:
    of = tool({"a": {"type": "string", **schema}}, ["a"])
    for text in texts:
        assert matches(of, bare({"a": text})), text


def test_arguments_that_may_not_be_are_left_out() -> None:
    assert matches(tool({}, maxProperties=0), "<function=f>\n</function>")
    assert matches(Tool.model_validate({"type": "function", "function": {"name": "f"}}), bare({}))


@pytest.mark.parametrize(
    ("properties", "more", "named"),
    [
        ({"a": {"type": "string", "pattern": "^a|b$"}}, {}, "pattern"),
        ({"a": {"type": "string", "pattern": r"a\\$b"}}, {}, "pattern"),
        ({"a": {"type": "string", "pattern": "(a"}}, {}, "pattern"),
        ({"a": {"format": "idn-email"}}, {}, "format"),
        ({"a": {"allOf": [{"type": "string"}]}}, {}, "allOf"),
        ({"a": {"$ref": "#/$defs/t", "maxLength": 1}}, {"$defs": {"t": {"type": "string"}}}, "ref"),
        ({"a": {"enum": ["</parameter>"]}}, {}, "enum"),
        ({"a>b": {}}, {}, "a>b"),
        ({"a": {}}, {"minProperties": 1}, "minProperties"),
        ({"a": {}, "b": {}}, {"maxProperties": 1}, "maxProperties"),
        ({}, {"patternProperties": {}}, "patternProperties"),
        ({}, {"type": "array"}, "type"),
        ({"a": {"$ref": "#"}}, {"required": ["a"]}, "other places"),
        ({"a": {"type": "array", "items": {"$ref": "#/properties/b"}}}, {}, "other places"),
    ],
)
def test_what_a_call_cannot_be_held_to_is_refused_by_name(
    properties: dict[str, Any], more: dict[str, Any], named: str
) -> None:
    with pytest.raises(ApiError, match=named) as caught:
        tagged_rules(0, tool(properties, **more))
    assert caught.value.body["error"]["param"] == "tools"
