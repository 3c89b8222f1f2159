"""Calls of tools, over HTTP, with the official `openai` package."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.integration.gateways import RunningGateway

MESSAGES: Any = [{"role": "user", "content": "weather?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Łódź", "首尔"]},
                "days": {"$ref": "#/$defs/d"},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"d": {"type": "integer", "minimum": 1, "maximum": 14}},
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "get-time", "parameters": {"type": "object", "maxProperties": 0}},
}
TOOLS: Any = [WEATHER, CLOCK]
#: What a model that is no model can be brought to say.
SAYS = {
    "guided_choice": [
        'So:\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get-time", "arguments": {}}\n</tool_call>'
    ]
}
SAID = [("get_weather", {"city": "Łódź"}), ("get-time", {})]


@pytest.fixture
def client(text_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with text_gateway.openai() as client:
        yield client
    text_gateway.until_idle()


def call(client: openai.OpenAI, *, stream: bool, **fields: Any) -> tuple[str | None, list, str]:
    """Content, calls and finish reason of an answer."""
    asked = {"model": "tools", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 400, **fields}
    if stream:
        content, calls, reason = streamed(client.chat.completions.create(**asked, stream=True))
    else:
        [choice] = client.chat.completions.create(**asked).choices
        content, reason = choice.message.content, choice.finish_reason
        calls = [
            (one.id, one.function.name, one.function.arguments)
            for one in choice.message.tool_calls or []
        ]
    assert all(re.fullmatch(r"call_[A-Za-z0-9]{24}", one[0]) for one in calls)
    assert len({one[0] for one in calls}) == len(calls)
    return content, [(name, json.loads(arguments)) for _, name, arguments in calls], reason


def streamed(chunks: Any) -> tuple[str, list[tuple[str, str, str]], str]:
    content, reason = "", ""
    calls: list[list[str]] = []
    for chunk in chunks:
        [choice] = chunk.choices
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for part in choice.delta.tool_calls or ():
            if part.id is not None:
                assert part.index == len(calls)
                assert part.type == "function"
                calls.append([part.id, part.function.name, ""])
            calls[part.index][2] += part.function.arguments
    return content, [(one[0], one[1], one[2]) for one in calls], reason


def check(calls: list) -> None:
    for name, arguments in calls:
        if name == "get_weather":
            assert arguments["city"] in ("Paris", "Łódź", "首尔")
            assert 1 <= arguments["days"] <= 14
        else:
            assert (name, arguments) == ("get-time", {})


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_is_one_of_the_tools(client: openai.OpenAI, stream: bool) -> None:
    names = set()
    for seed in range(8):
        content, calls, reason = call(
            client, stream=stream, tool_choice="required", parallel_tool_calls=False, seed=seed
        )
        assert not content
        assert len(calls) == 1
        assert reason == "tool_calls"
        check(calls)
        names.add(calls[0][0])
    assert names == {"get_weather", "get-time"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_called(client: openai.OpenAI, stream: bool) -> None:
    for name in ("get_weather", "get-time"):
        choice = {"type": "function", "function": {"name": name}}
        _, calls, reason = call(client, stream=stream, tool_choice=choice)
        assert [one[0] for one in calls] == [name]
        assert reason == "tool_calls"
        check(calls)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_in_parallel(client: openai.OpenAI, stream: bool) -> None:
    counts = set()
    for seed in range(12):
        # Of a model that would go on for ever.
        end = {"logit_bias": {"2": 2}, "temperature": 2}
        _, calls, reason = call(client, stream=stream, tool_choice="required", seed=seed, **end)
        assert reason == "tool_calls"
        check(calls)
        counts.add(len(calls))
    assert max(counts) > 1


def test_the_clients_own_stream_gathers_calls(client: openai.OpenAI) -> None:
    asked = {"model": "tools", "messages": MESSAGES, "tools": TOOLS, "extra_body": SAYS}
    with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        [choice] = stream.get_final_completion().choices
    assert kinds.count("tool_calls.function.arguments.done") == 2
    calls = [one.function for one in choice.message.tool_calls]
    assert [(one.name, json.loads(one.arguments)) for one in calls] == SAID


@pytest.mark.parametrize("stream", [False, True])
def test_text_and_calls_are_told_apart_where_both_are_free(
    client: openai.OpenAI, stream: bool
) -> None:
    content, calls, reason = call(client, stream=stream, extra_body=SAYS)
    assert (content, calls, reason) == ("So:", SAID, "tool_calls")
    single = {"parallel_tool_calls": False, "tool_choice": "auto"}
    content, calls, reason = call(client, stream=stream, extra_body=SAYS, **single)
    assert (content, calls, reason) == ("So:", SAID[:1], "tool_calls")
    content, calls, reason = call(client, stream=stream, extra_body=SAYS, tool_choice="none")
    assert (content, calls, reason) == (SAYS["guided_choice"][0], [], "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_may_be_called_or_an_answer_of_the_form_given(
    client: openai.OpenAI, stream: bool
) -> None:
    schema = {"enum": ["none needed"]}
    answer = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    kinds = set()
    for seed in range(12):
        content, calls, reason = call(
            client, stream=stream, seed=seed, response_format=answer, parallel_tool_calls=False
        )
        assert bool(content) != bool(calls)
        assert content in (None, "", '"none needed"')
        assert reason == ("tool_calls" if calls else "stop")
        check(calls)
        kinds.add(bool(calls))
    assert kinds == {True, False}


@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_are_not_to_be_called_are_not_shown(client: openai.OpenAI, stream: bool) -> None:
    without = call(client, stream=False, tools=openai.NOT_GIVEN, seed=3, max_tokens=20)
    assert call(client, stream=stream, tool_choice="none", seed=3, max_tokens=20) == without


def test_the_model_is_shown_the_tools_and_the_calls_before(
    client: openai.OpenAI, text_gateway: RunningGateway
) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    first = client.chat.completions.create(
        model="tools", messages=MESSAGES, tools=TOOLS, tool_choice=choice, max_tokens=200
    )
    message = first.choices[0].message
    [made] = message.tool_calls
    result = {"role": "tool", "tool_call_id": made.id, "content": "sunny"}
    messages = [*MESSAGES, message.to_dict(), result]
    second = client.chat.completions.create(
        model="tools", messages=messages, tools=TOOLS, max_tokens=5
    )
    with text_gateway.http() as http:
        body = {"model": "tools", "messages": messages, "tools": TOOLS}
        tokens = http.post("/tokenize", json=body).json()["tokens"]
        prompt = http.post("/detokenize", json={"model": "tools", "tokens": tokens}).json()
    assert second.usage.prompt_tokens == len(tokens)
    assert '<tool>{"type": "function", "function": {"name": "get_weather"' in prompt["prompt"]
    arguments = json.dumps(json.loads(made.function.arguments), ensure_ascii=False)
    assert f'"name": "get_weather", "arguments": {arguments}' in prompt["prompt"]
    assert prompt["prompt"].endswith("<tool>sunny<assistant>")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"model": "long", "tools": TOOLS}, "tools", "has none"),
        ({"tool_choice": "required"}, "tools", "no tools"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice",
            "other",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "not a name"}}]},
            "tools[0].function.name",
            "pattern",
        ),
        (
            {
                "tools": [
                    CLOCK,
                    {"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}},
                ]
            },
            "tools[1].function.parameters",
            "Invalid type: x",
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": "required",
                "response_format": {"type": "json_object"},
            },
            "response_format",
            "no effect",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "tool_call_id"),
        ({"messages": [{"role": "user"}]}, "messages[0]", "no content"),
        ({"functions": [{"name": "f"}]}, "functions", "not supported"),
    ],
)
def test_what_is_wrong_with_tools_is_told(
    client: openai.OpenAI, fields: Any, param: str, text: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match=text) as caught:
        client.chat.completions.create(
            **{"model": "tools", "messages": MESSAGES, "stream": stream, **fields}
        )
    assert caught.value.param == param
