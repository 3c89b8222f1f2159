"""Answers of a form asked for, over HTTP, with the official `openai` package."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from tests.integration.gateways import RunningGateway

MESSAGES: Any = [{"role": "user", "content": "who?"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"


@pytest.fixture
def client(text_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with text_gateway.openai() as client:
        yield client
    text_gateway.until_idle()


def named(schema: object, **fields: object) -> Any:
    described = {"name": "person", "schema": schema, "strict": True, **fields}
    return {"type": "json_schema", "json_schema": described}


def chat(client: openai.OpenAI, *, stream: bool, **fields: Any) -> tuple[str, str | None]:
    """Content of an answer and why it ended."""
    call = {"model": "long", "messages": MESSAGES, "max_tokens": 300, "seed": 5, **fields}
    if not stream:
        [choice] = client.chat.completions.create(**call).choices
        return choice.message.content, choice.finish_reason
    text, reason = "", None
    for chunk in client.chat.completions.create(**call, stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_answers_with_a_value_of_the_schema(client: openai.OpenAI, stream: bool) -> None:
    for seed in range(4):
        text, reason = chat(client, stream=stream, response_format=named(PERSON), seed=seed)
        person = json.loads(text)
        assert list(person) == ["name", "age"]
        assert 0 <= person["age"] <= 150
        assert reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_any_json_object_will_do(client: openai.OpenAI, stream: bool) -> None:
    # An object that goes on for ever is legal: only one that ends is asked for.
    for seed in range(4):
        fields = {"response_format": {"type": "json_object"}, "seed": seed}
        text, reason = chat(client, stream=stream, **fields)
        assert text.startswith("{")
        if reason == "stop":
            assert isinstance(json.loads(text), dict)
        assert not re.search(r"\s{34}", text)


@pytest.mark.parametrize("stream", [False, True])
def test_no_form_asked_for_is_any_text(client: openai.OpenAI, stream: bool) -> None:
    text = chat(client, stream=stream, response_format={"type": "text"})
    assert text == chat(client, stream=False)


@pytest.mark.parametrize(
    ("field", "value", "matches"),
    [
        ("guided_regex", DATE, DATE),
        ("guided_choice", ["yes", 'no "or" so', "é\n"], r"yes|no \"or\" so|é\n"),
        ("guided_json", {"enum": ["한국 🙂"]}, '"한국 🙂"'),
        ("guided_json", '{"type": "boolean"}', "true|false"),
        ("guided_grammar", 'start: "a" (",a"){2}', "a,a,a"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_other_forms(
    client: openai.OpenAI, field: str, value: object, matches: str, stream: bool
) -> None:
    text, reason = chat(client, stream=stream, extra_body={field: value})
    assert re.fullmatch(matches, text)
    assert reason == "stop"
    answer = client.completions.create(
        model="long", prompt="x", max_tokens=100, extra_body={field: value}
    )
    assert re.fullmatch(matches, answer.choices[0].text)


def test_a_form_holds_in_batches_with_penalties_and_without_end_tokens(
    client: openai.OpenAI,
) -> None:
    answer = client.chat.completions.create(
        model="long",
        messages=MESSAGES,
        max_tokens=300,
        n=8,
        seed=1,
        presence_penalty=1.5,
        response_format=named(PERSON),
        extra_body={"ignore_eos": True, "min_tokens": 200},
    )
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) > 1
    for text in texts:
        assert list(json.loads(text)) == ["name", "age"]
    again = client.chat.completions.create(
        model="long",
        messages=MESSAGES,
        max_tokens=300,
        seed=4,
        presence_penalty=1.5,
        response_format=named(PERSON),
        extra_body={"ignore_eos": True, "min_tokens": 200},
    )
    assert again.choices[0].message.content == texts[3]


def test_pydantic_models_are_parsed_by_the_client(client: openai.OpenAI) -> None:
    class Color(StrEnum):
        RED = "red"
        BLUE = "blue"

    class Car(BaseModel):
        color: Color
        wheels: int = Field(ge=3, le=6)

    completion = client.chat.completions.parse(
        model="long", messages=MESSAGES, response_format=Car, max_tokens=200
    )
    car = completion.choices[0].message.parsed
    assert isinstance(car, Car)
    with client.chat.completions.stream(
        model="long", messages=MESSAGES, response_format=Car, max_tokens=200
    ) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Car)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        (named({"type": "objekt"}), "response_format", "objekt"),
        (named({"type": "array", "uniqueItems": True}), "response_format", "uniqueItems"),
        (named(PERSON, name="no name"), "response_format", "pattern"),
        ({"type": "json"}, "response_format", "json"),
        ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
        ({"guided_grammar": "start: what"}, "guided_grammar", "what"),
        ({"guided_json": "{"}, "guided_json", "property name"),
        ({"guided_regex": "a" * 300_000}, "guided_regex", "262144"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "only one"),
    ],
)
def test_what_is_wrong_with_a_form_is_told(
    client: openai.OpenAI, fields: Any, param: str, text: str, stream: bool
) -> None:
    extra = {"response_format": fields} if "type" in fields else {"extra_body": fields}
    with pytest.raises(openai.BadRequestError, match=text) as caught:
        client.chat.completions.create(model="long", messages=MESSAGES, stream=stream, **extra)
    assert caught.value.code == "invalid_value"
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)
