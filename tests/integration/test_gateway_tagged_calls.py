"""Calls in the form of Qwen3-Coder, of a model whose `tool_parser` says so, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.integration.gateways import RunningGateway
from tests.integration.test_gateway_tools import CLOCK, WEATHER, call

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": {
                "words": {"type": "string", "minLength": 2, "maxLength": 12},
                "limit": {"type": ["integer", "null"], "minimum": 1, "maximum": 3},
                "where": {"$ref": "#/$defs/where"},
            },
            "required": ["words", "limit"],
            "$defs": {"where": {"enum": ["title", "Text", 7]}},
        },
    },
}
TOOLS: Any = [WEATHER, CLOCK, SEARCH]
SAID = """So:
<tool_call>
<function=search>
<parameter=words>
first "line"
<b>Łódź</b>
</parameter>
<parameter=limit>
None
</parameter>
<parameter=where>
7
</parameter>
</function>
</tool_call>
<tool_call>
<function=get-time>
</function>
</tool_call>"""
MEANT = [
    ("search", {"words": 'first "line"\n<b>Łódź</b>', "limit": None, "where": 7}),
    ("get-time", {}),
]


@pytest.fixture
def client(text_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with text_gateway.openai() as client:
        yield client
    text_gateway.until_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_arguments_have_the_types_of_the_schema(client: openai.OpenAI, stream: bool) -> None:
    says = {"extra_body": {"guided_choice": [SAID]}, "tools": TOOLS, "model": "coder"}
    assert call(client, stream=stream, **says) == ("So:", MEANT, "tool_calls")
    single = {**says, "parallel_tool_calls": False}
    assert call(client, stream=stream, **single) == ("So:", MEANT[:1], "tool_calls")
    assert call(client, stream=stream, tool_choice="none", **says) == (SAID, [], "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_is_held_to_its_schema(client: openai.OpenAI, stream: bool) -> None:
    names = set()
    for seed in range(6):
        content, calls, reason = call(
            client,
            stream=stream,
            model="coder",
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            seed=seed,
        )
        assert (content or "", len(calls), reason) == ("", 1, "tool_calls")
        [(name, arguments)] = calls
        names.add(name)
        check(name, arguments)
    assert len(names) > 1
    choice = {"type": "function", "function": {"name": "search"}}
    _, calls, _ = call(client, stream=stream, model="coder", tools=TOOLS, tool_choice=choice)
    check(*calls[0])
    assert calls[0][0] == "search"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["tools", "coder"])
def test_a_required_call_that_is_cut_is_no_text(
    client: openai.OpenAI, model: str, stream: bool
) -> None:
    for limit in (1, 12, 20):
        content, calls, reason = cut_call(client, model, limit, stream)
        assert (content, reason) == ("", "length")
        assert calls <= 1


def cut_call(
    client: openai.OpenAI, model: str, limit: int, stream: bool
) -> tuple[str, int, str | None]:
    """Content, number of calls and finish reason of an answer with so few tokens."""
    asked: Any = {
        "model": model,
        "messages": [{"role": "user", "content": "?"}],
        "tools": [SEARCH],
        "tool_choice": "required",
        "max_tokens": limit,
    }
    if not stream:
        [choice] = client.chat.completions.create(**asked).choices
        calls = choice.message.tool_calls or []
        return choice.message.content or "", len(calls), choice.finish_reason
    content, count, reason = "", 0, None
    for chunk in client.chat.completions.create(**asked, stream=True):
        [choice] = chunk.choices
        content += choice.delta.content or ""
        count += sum(part.id is not None for part in choice.delta.tool_calls or ())
        reason = choice.finish_reason or reason
    return content, count, reason


def check(name: str, arguments: Any) -> None:
    if name == "get_weather":
        assert arguments["city"] in ("Paris", "Łódź", "首尔")
        assert 1 <= arguments["days"] <= 14
    elif name == "get-time":
        assert arguments == {}
    else:
        assert 2 <= len(arguments["words"]) <= 12
        assert arguments["limit"] in (None, 1, 2, 3)
        assert arguments.get("where", 7) in ("title", "Text", 7)


def test_a_schema_that_it_cannot_be_held_to_is_refused(client: openai.OpenAI) -> None:
    properties = {"day": {"type": "string", "format": "hostname"}}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    asked: Any = {
        "model": "coder",
        "messages": [{"role": "user", "content": "?"}],
        "tools": [{"type": "function", "function": function}],
        "max_tokens": 2,
    }
    with pytest.raises(openai.BadRequestError, match=r"'f'.*properties\['day'\].format") as caught:
        client.chat.completions.create(**asked, tool_choice="required")
    assert (caught.value.param, caught.value.code) == ("tools", "unsupported")
    client.chat.completions.create(**asked)  # where calls are free, nothing is held to it


def test_models_tell_their_tool_parser_and_take_no_unknown_one(
    text_gateway: RunningGateway,
) -> None:
    assert text_gateway.get("/v1/models/coder")["tool_parser"] == "qwen3_coder"
    assert text_gateway.get("/v1/models/tools")["tool_parser"] is None
    runtime = text_gateway.get("/v1/aegaeon/runtime")
    specs = {model["spec"]["name"]: model["spec"] for model in runtime["models"]}
    assert specs["coder"]["tool_parser"] == "qwen3_coder"
    with text_gateway.http() as http:
        body = {"model": "coder", "tool_parser": "qwen3_codr"}
        answer = http.post("/v1/models/deploy", json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("tool_parser", "invalid_value")
        assert "did you mean qwen3_coder?" in error["message"]
        # What is not said stays as it is.
        assert http.post("/v1/models/deploy", json={"model": "coder"}).status_code == 200
        other = http.post("/v1/models/deploy", json={**body, "tool_parser": "hermes"})
        assert other.json()["error"]["code"] == "model_conflict"
