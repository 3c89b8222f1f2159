"""Calls in text: the same however the text is cut, in the form of each family."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon.http.tools.families import (
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_LIST,
    QWEN_CODER,
    Family,
    family_of,
    named_family,
)
from aegaeon.http.tools.parser import CallParser
from aegaeon.http.vocabulary import Vocabulary
from aegaeon.tool_parsers import TOOL_PARSERS
from tests.http.tokenizers_made import byte_level

Calls = list[tuple[str, str]]
NAMES = st.text("abc_", min_size=1, max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(st.text(max_size=4), JSON)), max_size=3)


def parse(family: Family, pieces: Sequence[str], *, single: bool = False) -> tuple[str, Calls]:
    parser = CallParser(family.marks, single=single)
    text, calls = "", {}
    for parts in [*map(parser.feed, pieces), parser.finish()]:
        text += parts.text
        for part in parts.calls:
            if part.name is not None:
                assert part.id is not None
                assert part.index == len(calls)
                calls[part.index] = (part.name, part.id, [])
            calls[part.index][2].append(part.arguments)
    assert len({call[1] for call in calls.values()}) == len(calls)
    return text, [(name, "".join(arguments)) for name, _, arguments in calls.values()]


def cut(text: str, points: Sequence[int]) -> list[str]:
    ends = sorted({point % (len(text) + 1) for point in points} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def written(family: Family, calls: Sequence[tuple[str, object]]) -> str:
    if family is MISTRAL:
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given)}" for name, given in calls)
    objects = [json.dumps({"name": name, family.arguments: given}) for name, given in calls]
    if family is HERMES:
        return "".join(f"<tool_call>\n{one}\n</tool_call>\n" for one in objects)
    if family is LLAMA:
        return "; ".join(objects)
    return f"[TOOL_CALLS] [{', '.join(objects)}]" if objects else ""


@pytest.mark.parametrize("family", [HERMES, LLAMA, MISTRAL, MISTRAL_LIST])
@given(calls=CALLS, points=st.lists(st.integers(0, 10_000), max_size=20))
def test_what_is_written_is_read_however_it_is_cut(
    family: Family, calls: list[tuple[str, object]], points: list[int]
) -> None:
    text, found = parse(family, cut(written(family, calls), points))
    assert text == ""
    assert [(name, json.loads(given)) for name, given in found] == calls


@pytest.mark.parametrize("family", [HERMES, LLAMA, MISTRAL, MISTRAL_LIST])
@given(
    text=st.text('<tool_call>/[TOOL_CALLS]ARGS {}":,name \\\n', max_size=60),
    points=st.lists(st.integers(0, 10_000), max_size=20),
)
def test_any_text_is_the_same_however_it_is_cut(
    family: Family, text: str, points: list[int]
) -> None:
    assert parse(family, cut(text, points)) == parse(family, [text])


@pytest.mark.parametrize(
    ("family", "text", "content", "calls"),
    [
        (HERMES, "Let me see.\n\n<tool_call>{}", "Let me see.\n\n<tool_call>{}", []),
        (
            HERMES,
            'I see.\n<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
            "I see.",
            [("f", '{"a": "</tool_call>"}')],
        ),
        # Cut by the limit of tokens: what there is of it.
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a', "", [("f", '{"a')]),
        (HERMES, '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        # Arguments as a string, and ahead of the name.
        (HERMES, '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "f"}', "", [("f", '{"a": 1}')]),
        (HERMES, '<tool_call>{"name": "f"}</tool_call>\n<tool_c', "", [("f", "{}")]),
        (HERMES, "a < b, <tool_ is none  ", "a < b, <tool_ is none  ", []),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", "{}")]),
        (LLAMA, '{"answer": 42}', '{"answer": 42}', []),
        (LLAMA, 'It is {"name": "f"}', 'It is {"name": "f"}', []),
        (MISTRAL, '[TOOL_CALLS]f[CALL_ID]x[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
        (MISTRAL_LIST, '[TOOL_CALLS]{"name": "f", "arguments": {}}', "", [("f", "{}")]),
    ],
)
def test_texts_and_calls_are_told_apart(
    family: Family, text: str, content: str, calls: Calls
) -> None:
    assert parse(family, [text]) == parse(family, list(text)) == (content, calls)


def test_a_single_call_may_be_all_that_is_wanted() -> None:
    text = written(HERMES, [("f", {}), ("g", {"a": 1})])
    assert parse(HERMES, [text], single=True) == ("", [("f", "{}")])


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{{ '<tool_call>' }}{{ tools }}", HERMES),
        ("{{ tools }}{{ '<|python_tag|>' }}", LLAMA),
        ("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]", MISTRAL_LIST),
        ("{{ tools }}[TOOL_CALLS]name[ARGS]", MISTRAL),
        ("{{ tools }}<tool_call><function=name><parameter=name>", QWEN_CODER),
        ("{{ tools }}<tool_call><function=name>", None),
        ("{{ messages }}", None),
    ],
)
def test_templates_tell_their_family(template: str, family: Family | None) -> None:
    assert family_of(template) is family


def test_every_name_has_its_family() -> None:
    older = byte_level()
    newer = byte_level()
    newer.add_tokens(["[ARGS]"])
    for name in TOOL_PARSERS:
        assert named_family(name, "", Vocabulary(older)) is not None
    assert named_family("llama3_json", "<tool_call>", Vocabulary(older)) is LLAMA
    assert named_family("mistral", "", Vocabulary(older)) is MISTRAL_LIST
    assert named_family("mistral", "", Vocabulary(newer)) is MISTRAL
    assert (
        named_family("mistral", "{{ tools }}[TOOL_CALLS]name[ARGS]", Vocabulary(older)) is MISTRAL
    )
    assert named_family("of a newer scheduler", "", Vocabulary(older)) is None
