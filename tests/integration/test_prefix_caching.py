"""Prompts that begin alike, from the client's side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from aegaeon.errors import InvalidRequestError
from aegaeon.model_spec import ModelSpec
from aegaeon.request import Request
from aegaeon.service import LLMService
from tests.integration.daemons import until
from tests.integration.gateways import RunningGateway

EXACT = {"temperature": 0, "ignore_eos": True}


@pytest.fixture
def client(text_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with text_gateway.openai() as client:
        yield client
    text_gateway.until_idle()


@pytest.fixture
def salt(request: pytest.FixtureRequest) -> str:
    """Keeps tests from finding what others left."""
    return f"{request.node.name}"[:64]


def ask(client: openai.OpenAI, prompt: str, salt: str, **fields: Any) -> Any:
    extra = EXACT | {"cache_salt": salt} | fields.pop("extra_body", {})
    return client.completions.create(
        model="long", prompt=prompt, max_tokens=8, extra_body=extra, **fields
    )


def cached(answer: Any) -> int:
    count = answer.usage.prompt_tokens_details.cached_tokens
    assert 0 <= count < answer.usage.prompt_tokens
    return int(count)


def test_usage_tells_how_much_of_a_prompt_was_there(client: openai.OpenAI, salt: str) -> None:
    prompt = "a" * 100
    first = ask(client, prompt, salt)
    again = ask(client, prompt, salt)
    longer = ask(client, prompt + "b" * 30, salt)
    assert (cached(first), cached(again), cached(longer)) == (0, 96, 96)
    assert again.choices[0].text == first.choices[0].text
    plain = ask(client, prompt, salt, extra_body={"prefix_caching": False})
    assert (cached(plain), plain.choices[0].text) == (0, first.choices[0].text)
    assert cached(ask(client, prompt, salt[:-1])) == 0


def test_streams_and_answers_cut_at_stop_strings_tell_it_too(
    client: openai.OpenAI, salt: str
) -> None:
    prompt = "c" * 70
    text = ask(client, prompt, salt).choices[0].text
    *_, last = ask(client, prompt, salt, stream=True, stream_options={"include_usage": True})
    assert last.usage.prompt_tokens_details.cached_tokens == 64
    assert cached(ask(client, prompt, salt, stop=text[2:4])) == 64


def test_several_answers_to_one_prompt_do_not_count_as_finds(
    client: openai.OpenAI, salt: str
) -> None:
    prompt = "d" * 2000
    assert cached(ask(client, prompt, salt, n=4)) == 0
    assert cached(ask(client, prompt, salt, n=4)) == 1984
    assert cached(ask(client, [prompt, prompt + "e"], salt, n=2)) == 1984 + 2000


def test_chats_and_responses_tell_it(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "f" * 90}]
    for _ in range(2):
        chat = client.chat.completions.create(
            model="long", messages=messages, max_tokens=4, extra_body=EXACT
        )
        response = client.responses.create(model="long", input="f" * 90, max_output_tokens=4)
    assert chat.usage.prompt_tokens_details.cached_tokens >= 80
    assert response.usage.input_tokens_details.cached_tokens >= 80


def test_counters_and_memory_are_in_the_snapshot(
    client: openai.OpenAI, text_gateway: RunningGateway, salt: str
) -> None:
    def snapshot() -> tuple[int, int, dict[str, int]]:
        runtime = text_gateway.get("/v1/aegaeon/runtime")
        statistics = runtime["statistics"]
        [worker] = runtime["workers"]
        return statistics["prompt_tokens"], statistics["cached_tokens"], worker["usage"]

    prompts, found, usage = snapshot()
    for _ in range(2):
        ask(client, "g" * 50, salt)
    text_gateway.until_idle()
    until(lambda: snapshot()[2]["prefix_reused_tokens"] == usage["prefix_reused_tokens"] + 48)
    assert snapshot()[:2] == (prompts + 100, found + 48)
    after = snapshot()[2]
    assert after["prefix_queried_tokens"] == usage["prefix_queried_tokens"] + 100
    assert after["prefix_device_bytes"] > 0
    assert after["device_kv_bytes"] == 0, "what is kept counts as free"


def test_python_callers_find_it_on_the_last_token(
    text_gateway: RunningGateway, text_specs: list[ModelSpec], salt: str
) -> None:
    with LLMService(address=text_gateway.scheduler.address) as service:

        def run(**fields: Any) -> int:
            request = Request(text_specs[0], 0.0, "r", [7] * 40, 5, ignore_eos=True, **fields)
            [steps] = service.serve([request])
            assert isinstance(steps, list)
            assert [step.cached_tokens for step in steps[:-1]] == [0] * 4
            return steps[-1].cached_tokens

        assert [run(cache_salt=salt) for _ in range(2)] == [0, 32]
        assert run(cache_salt=salt, prefix_caching=False) == 0
        [error] = service.serve([Request(text_specs[0], 0.0, "r", [7], 5, cache_salt="s" * 257)])
        assert isinstance(error, InvalidRequestError)
