"""Cases that broke other systems, in chats, and in answers that a model would rather not end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.integration.gateways import RunningGateway
from tests.integration.text_model import SHORT_CONTEXT, text_model

# What the scheduler refuses is an error of a stream that has begun, where that takes a second.
STREAM = pytest.mark.parametrize("stream", [False, True])
#: Ids of words of the tiny vocabulary, and of the tokenizer's own end.
CONFIG_END, FIRST_END, SECOND_END, TOKENIZER_END = 300, 310, 320, 2


@pytest.fixture
def client(text_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with text_gateway.openai() as client:
        yield client
    text_gateway.until_idle()


def chat(client: openai.OpenAI, *, stream: bool, **fields: Any) -> tuple[str, str | None]:
    """Content of an answer, and why it ended."""
    asked: Any = {"model": "long", "messages": [user("hello")], "max_tokens": 24, **fields}
    if not stream:
        [choice] = client.chat.completions.create(**asked).choices
        return choice.message.content or "", choice.finish_reason
    text, reason = "", None
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture
def many_ends(text_gateway: RunningGateway, tmp_path: Path) -> Iterator[str]:
    """A model with an end in its config, two in its generation config, and one in its tokenizer."""
    folder = Path(text_model("ends", tmp_path).path())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": CONFIG_END}))
    several = {"eos_token_id": [FIRST_END, SECOND_END]}
    (folder / "generation_config.json").write_text(json.dumps(several))
    with text_gateway.http() as http:
        body = {"model": "ends", "path": str(folder)}
        assert http.post("/v1/models/deploy", json=body).json()["ready"] == ["node_0"]
        yield "ends"
        text_gateway.until_idle()
        assert http.post("/v1/models/undeploy", json={"model": "ends"}).status_code == 200


@STREAM
def test_every_end_of_a_models_files_is_one_unless_ends_are_ignored(
    client: openai.OpenAI, many_ends: str, stream: bool
) -> None:
    for end in (CONFIG_END, FIRST_END, SECOND_END, TOKENIZER_END):
        always = {"model": many_ends, "logit_bias": {str(end): 100}, "max_tokens": 3}
        assert chat(client, stream=stream, **always) == ("", "stop")
        ignored = {"extra_body": {"ignore_eos": True}}
        assert chat(client, stream=stream, **always, **ignored)[1] == "length"
        own = {"extra_body": {"ignore_eos": True, "stop_token_ids": [end]}}
        assert chat(client, stream=stream, **always, **own) == ("", "stop")


@STREAM
def test_a_chat_that_is_too_long_is_told_both_lengths(client: openai.OpenAI, stream: bool) -> None:
    messages = [user("x" * 200)]
    with pytest.raises(openai.APIError, match=rf"{SHORT_CONTEXT} tokens") as caught:
        chat(client, stream=stream, model="short", messages=messages, max_tokens=openai.omit)
    assert caught.value.code == "context_length_exceeded"
    assert str(len("<user><assistant>") + 200) in caught.value.message


@STREAM
def test_no_part_of_a_stop_string_is_shown_in_a_chat(client: openai.OpenAI, stream: bool) -> None:
    said = {"extra_body": {"guided_choice": ["ABCDEFGHIJKL"]}}
    for stop, shown in [("DEFGHIJ", "ABC"), ("DEFGX", "ABCDEFGHIJKL"), (["X", "A"], "")]:
        assert chat(client, stream=stream, stop=stop, **said) == (shown, "stop")


@STREAM
@pytest.mark.parametrize(
    "form",
    [
        {"guided_grammar": 'start: "a" more\nmore: more'},
        {"guided_grammar": "start: start"},
        {"guided_regex": r"[^\s\S]"},
        {"guided_json": {"$ref": "#"}},
    ],
)
def test_a_form_that_leads_nowhere_is_its_askers_fault(
    client: openai.OpenAI, form: Any, stream: bool
) -> None:
    with pytest.raises(openai.APIError, match=r"the form asked for.*leads? on") as caught:
        chat(client, stream=stream, extra_body=form)
    assert caught.value.code == "invalid_value"
    assert chat(client, stream=stream)[0]


def test_what_openai_s_clients_tell_of_a_user_does_no_harm(client: openai.OpenAI) -> None:
    more = {"safety_identifier": "someone", "prompt_cache_key": "chats", "verbosity": "medium"}
    asked: Any = {"temperature": 0, "max_tokens": 4}
    assert chat(client, stream=False, **asked, **more) == chat(client, stream=False, **asked)
    with pytest.raises(openai.BadRequestError, match="verbosity"):
        chat(client, stream=False, verbosity="low")


@STREAM
@pytest.mark.parametrize("bias", [{"191222": 1}, {"-1": 1}, {"one": 1}])
def test_a_wrong_bias_of_a_chat_is_told(client: openai.OpenAI, bias: Any, stream: bool) -> None:
    with pytest.raises(openai.APIError) as caught:
        chat(client, stream=stream, logit_bias=bias)
    assert caught.value.param == "logit_bias"
    assert "sampling." not in caught.value.message


@STREAM
def test_an_object_is_closed_whatever_the_model_prefers(
    client: openai.OpenAI, text_gateway: RunningGateway, stream: bool
) -> None:
    """White space without end, and a backslash ahead of every letter."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 6}, "b": {"enum": ["서울 🙂"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
    with text_gateway.http() as http:
        for liked in (" \n\t", "\\", '"'):
            asked = {"model": "long", "prompt": liked, "add_special_tokens": False}
            ids = http.post("/tokenize", json=asked).json()["tokens"]
            assert len(ids) == len(liked)
            text, reason = chat(
                client,
                stream=stream,
                temperature=0,
                max_tokens=400,
                response_format=form,
                logit_bias={str(token): 100 for token in ids},
            )
            assert reason == "stop"
            assert json.loads(text)["b"] == "서울 🙂"
            assert "서울 🙂" in text
