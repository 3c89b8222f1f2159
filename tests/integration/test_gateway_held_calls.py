"""Calls that a model may make or not, held to their schemas where it does, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from aegaeon.model_spec import ModelSpec
from tests.integration.gateways import RunningGateway, running_gateway
from tests.integration.test_gateway_tools import CLOCK, MESSAGES, WEATHER, check
from tests.worker.models.tiny import VOCAB_SIZE

MIB = 1 << 20
ANSWERS = 16
#: What tiny models begin calls with, and what ends their answers.
BEGIN, END = VOCAB_SIZE - 1, 2
CHATML = """\
{%- if tools %}<|im_start|>system
Tools:{% for t in tools %}
{{ t | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {**tool["function"], "strict": True}}


TOOLS: Any = [strict(WEATHER), strict(CLOCK)]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.fixture
def client(text_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with text_gateway.openai() as client:
        yield client
    text_gateway.until_idle()


Answer = tuple[str, list[tuple[str, Any]]]


def answers(client: openai.OpenAI, *, stream: bool, **fields: Any) -> list[Answer]:
    """Texts and calls of answers that have come to their end, of a model that has a mind to call,
    and as much to stop."""
    asked = {
        "model": "marked",
        "messages": MESSAGES,
        "tools": TOOLS,
        "max_tokens": 500,
        "n": ANSWERS,
        "seed": 5,
        "logit_bias": {str(BEGIN): 7, str(END): 7},
        **fields,
    }
    if stream:
        found = streamed(client.chat.completions.create(**asked, stream=True), asked["n"])
    else:
        found = [
            (
                one.message.content or "",
                [(c.function.name, c.function.arguments) for c in one.message.tool_calls or []],
                one.finish_reason,
            )
            for one in client.chat.completions.create(**asked).choices
        ]
    for _, calls, reason in found:
        assert reason in ("length", "tool_calls" if calls else "stop")
    return [
        (text, [(name, json.loads(arguments)) for name, arguments in calls])
        for text, calls, reason in found
        if reason != "length"
    ]


def streamed(chunks: Any, count: int) -> list[tuple[str, list[tuple[str, str]], str]]:
    texts, reasons = [""] * count, [""] * count
    calls: list[list[list[str]]] = [[] for _ in range(count)]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            for part in choice.delta.tool_calls or ():
                if part.id is not None:
                    calls[choice.index].append([part.function.name, ""])
                calls[choice.index][part.index][1] += part.function.arguments
    made = [[(name, arguments) for name, arguments in one] for one in calls]
    return list(zip(texts, made, reasons, strict=True))


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_a_model_begins_are_of_their_schemas(
    client: openai.OpenAI, stream: bool
) -> None:
    found = answers(client, stream=stream)
    counts = {len(calls) for _, calls in found}
    assert 0 in counts
    assert max(counts) > 1
    assert {name for _, calls in found for name, _ in calls} == {"get_weather", "get-time"}
    for text, calls in found:
        check(calls)
        assert "<tool_call>" not in text


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_most_ends_the_answer(client: openai.OpenAI, stream: bool) -> None:
    found = answers(client, stream=stream, parallel_tool_calls=False)
    assert {len(calls) for _, calls in found} == {0, 1}
    for _, calls in found:
        check(calls)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_called(client: openai.OpenAI, mode: str, stream: bool) -> None:
    for name in ("get_weather", "get-time"):
        found = answers(client, stream=stream, tool_choice=allowed(mode, name))
        called = [call for _, calls in found for call in calls]
        assert {one[0] for one in called} == {name}
        check(called)
        assert any(not calls for _, calls in found) == (mode == "auto")


def test_all_tools_are_shown_whichever_are_allowed(client: openai.OpenAI) -> None:
    choices = (allowed("auto", "get-time"), "auto")
    sizes = {
        client.chat.completions.create(
            model="marked", messages=MESSAGES, tools=TOOLS, tool_choice=choice, max_tokens=1
        ).usage.prompt_tokens
        for choice in choices
    }
    assert len(sizes) == 1


def test_responses_have_the_same_choice(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", **one["function"]} for one in TOOLS]
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "get-time"}],
    }
    made = client.responses.create(
        model="marked",
        input="weather?",
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=False,
        extra_body={"store": False},
    )
    [item] = made.output
    assert (item.type, item.name, json.loads(item.arguments)) == ("function_call", "get-time", {})


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"tool_choice": allowed("auto", "other")}, "tool_choice.allowed_tools", "other"),
        ({"tool_choice": allowed("none", "get-time")}, "tool_choice", "auto"),
        ({"tool_choice": allowed("auto")}, "tool_choice", "at least 1"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice", "custom"),
        ({"extra_body": {"guided_regex": "a+"}}, "guided_regex", "response_format"),
    ],
)
def test_what_is_wrong_with_a_choice_is_told(
    client: openai.OpenAI, fields: Any, param: str, text: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=text) as caught:
        client.chat.completions.create(model="marked", messages=MESSAGES, tools=TOOLS, **fields)
    assert caught.value.param == param


@pytest.fixture(scope="module")
def real(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory, shm_dir: Path
) -> Iterator[RunningGateway]:
    """A real model, with a template that shows it tools."""
    folder = tmp_path_factory.mktemp("real") / "smol"
    folder.mkdir()
    for file in demo_model.iterdir():
        if file.name not in ("chat_template.jinja", "tokenizer_config.json"):
            (folder / file.name).symlink_to(file)
    settings = json.loads((demo_model / "tokenizer_config.json").read_text())
    text = json.dumps({**settings, "chat_template": CHATML})
    (folder / "tokenizer_config.json").write_text(text)
    flags = {"device_memory_bytes": 1024 * MIB, "model_cache_bytes": 640 * MIB}
    with running_gateway(folder.parent, shm_dir, [ModelSpec("smol", folder)], flags) as running:
        yield running


def conversation() -> list[dict[str, Any]]:
    """Weather that was asked for and told, and weather that no tool can tell."""
    messages: list[dict[str, Any]] = []
    for number, (city, days) in enumerate((("Paris", 3), ("Rome", 2), ("Paris", 5))):
        arguments = json.dumps({"city": city, "days": days})
        function = {"name": "get_weather", "arguments": arguments}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages += [
            {"role": "user", "content": f"What is the weather in {city} for {days} days?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "sunny", "tool_call_id": f"c{number}"},
            {"role": "assistant", "content": "It is sunny."},
        ]
    return [*messages, {"role": "user", "content": "What is the weather in Berlin for 30 days?"}]


@pytest.mark.parametrize("stream", [False, True])
def test_a_real_model_calls_as_it_likes_and_only_within_the_schema(
    real: RunningGateway, stream: bool
) -> None:
    parameters = {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome", "Oslo"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    asked: dict[str, Any] = {"model": "smol", "messages": conversation(), "temperature": 0}
    asked |= {"n": 1, "logit_bias": {}, "max_tokens": 80, "stream": stream}
    with real.openai() as client:
        [(text, free)] = answers(client, tools=[tool], **asked)
        [(held_text, held)] = answers(client, tools=[strict(tool)], **asked)
        hello = [{"role": "user", "content": "Say hello."}]
        [(said, none)] = answers(client, tools=[strict(tool)], **{**asked, "messages": hello})
    real.until_idle()
    assert (text, free) == ("", [("get_weather", {"city": "Berlin", "days": 30})])
    [(name, arguments)] = held
    assert (held_text, name) == ("", "get_weather")
    assert arguments["city"] in ("Paris", "Rome", "Oslo")
    assert 1 <= arguments["days"] <= 14
    assert said
    assert not none
