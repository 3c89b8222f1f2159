"""The Responses endpoint, with the official `openai` package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.integration.gateways import RunningGateway

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Łódź"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
CALL: Any = {"type": "function", "name": "get_weather"}


class Answer(BaseModel):
    verdict: Literal["yes", "no"]


@pytest.fixture
def client(text_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with text_gateway.openai() as client:
        yield client
    text_gateway.until_idle()


def test_a_text_is_answered_as_a_chat_is(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="long",
        instructions="be brief",
        input="hi",
        max_output_tokens=12,
        temperature=0,
        metadata={"for": "tests"},
    )
    messages: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    chat = client.chat.completions.create(
        model="long", messages=messages, max_tokens=12, temperature=0
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens
    assert response.metadata == {"for": "tests"}
    if chat.choices[0].finish_reason == "length":
        assert response.status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"


def test_a_stream_tells_of_every_part_and_ends_with_the_whole(client: openai.OpenAI) -> None:
    asked: Any = {"model": "long", "input": "hi", "max_output_tokens": 12, "temperature": 0}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:-1] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    assert events[-1].type == f"response.{whole.status}"
    # The prompt's KV is there by then.
    usage, known = events[-1].response.usage, whole.usage
    assert (usage.input_tokens, usage.output_tokens) == (known.input_tokens, known.output_tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_a_form_and_its_parsing(client: openai.OpenAI, stream: bool) -> None:
    asked: Any = {"model": "long", "input": "hi", "text_format": Answer}
    if stream:
        with client.responses.stream(**asked) as events:
            response = events.get_final_response()
    else:
        response = client.responses.parse(**asked)
    assert response.output_parsed.verdict in ("yes", "no")
    assert response.status == "completed"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_and_what_comes_of_it(client: openai.OpenAI, stream: bool) -> None:
    asked: Any = {"model": "tools", "tools": [WEATHER], "max_output_tokens": 200}
    first: Any = {"input": "weather?", "tool_choice": CALL}
    if stream:
        with client.responses.stream(**asked, **first) as events:
            response = events.get_final_response()
    else:
        response = client.responses.create(**asked, **first)
    [call] = response.output
    assert call.type == "function_call"
    assert call.name == "get_weather"
    assert json.loads(call.arguments)["city"] in ("Paris", "Łódź")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    conversation = [
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        call.to_dict(),
        result,
    ]
    second = client.responses.create(**asked, input=conversation)
    # And an answer that is sent back as it came.
    third = client.responses.create(
        **asked,
        input=[
            *conversation,
            *(item.to_dict() for item in second.output),
            {"role": "user", "content": "thanks"},
        ],
    )
    assert third.usage.input_tokens > second.usage.input_tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"store": True}, "store", "unsupported"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported"),
        ({"reasoning": {"effort": "low"}}, "reasoning", "unsupported"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"model": "nobody"}, "model", "model_not_found"),
        ({"extra_body": {"guess": 1}}, "guess", "unknown_field"),
    ],
)
def test_what_is_not_done_is_told(
    client: openai.OpenAI, fields: Any, param: str, code: str, stream: bool
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.create(**{"model": "long", "input": "hi", "stream": stream, **fields})
    assert caught.value.code == code
    if code != "model_not_found":
        assert caught.value.param == param
