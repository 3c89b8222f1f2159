"""Bodies whose size is in their number of parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from aegaeon.http.body import MAX_LISTS, MAX_STRINGS, Body, check_parts
from aegaeon.http.errors import ApiError, from_validation
from aegaeon.http.responses.schemas import ResponsesBody
from aegaeon.http.schemas import (
    ChatBody,
    CompletionBody,
    DeployBody,
    DetokenizeBody,
    TokenizeBody,
    UndeployBody,
)

BODIES: list[type[Body]] = [
    *(ChatBody, CompletionBody, DeployBody, DetokenizeBody, ResponsesBody, TokenizeBody),
    UndeployBody,
]


def schemas(node: Any) -> Iterator[dict[str, Any]]:
    """All schemas within one of pydantic's."""
    if isinstance(node, dict):
        if isinstance(node.get("type"), str):
            yield node
        for value in node.values():
            yield from schemas(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from schemas(value)


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_no_list_makes_an_error_of_each_of_its_items(kind: type[Body]) -> None:
    lists = [
        one
        for one in schemas(kind.__pydantic_core_schema__)
        if one["type"] == "list" and one.get("items_schema", {}).get("type", "any") != "any"
    ]
    assert lists
    assert [one for one in lists if not one.get("fail_fast")] == []


@pytest.mark.parametrize(
    "content",
    [
        b'{"model": "m", "messages": [' + b"{}," * MAX_LISTS + b"{}]}",
        b'{"model": "m", "prompt": [' + b"[]," * MAX_LISTS + b"[]]}",
        b'{"model": "m", "stop": [' + b'"",' * MAX_STRINGS + b'""]}',
        b'{"model": "m", "stop": [' + b'"\\\\",' * (2 * MAX_STRINGS) + b'""]}',
        b"{" + b",".join(b'"%d": 1' % number for number in range(MAX_STRINGS + 1)) + b"}",
    ],
    ids=["objects", "lists", "strings", "backslashes", "names"],
)
def test_more_parts_than_can_be_read_at_once_are_refused(content: bytes) -> None:
    with pytest.raises(ApiError, match="at most"):
        check_parts(content)


def test_long_texts_and_many_ids_are_no_parts() -> None:
    text = 'He said: "{[1, 2]}", and left.\n' * 50_000
    for body in ({"prompt": text}, {"prompt": list(range(500_000))}):
        check_parts(json.dumps({"model": "m", **body}).encode())


def test_many_errors_are_told_in_one() -> None:
    body = {"model": "m", "prompt": "x", **{f"field{number}": 1 for number in range(2000)}}
    with pytest.raises(ValidationError) as caught:
        CompletionBody.model_validate_json(json.dumps(body))
    assert "2000" in str(from_validation(caught.value))
