"""The official `openai` package against real daemons."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import httpx
import openai
import psutil
import pytest

from aegaeon.model_spec import ModelSpec
from aegaeon.utils import get_tokenizer
from tests.integration.daemons import until
from tests.integration.gateways import RunningGateway, refused
from tests.integration.text_model import FORBIDDEN, SHORT_CONTEXT

MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hi "}, {"type": "text", "text": "é"}]},
]
#: What the gateway may grow by: some 40 KB per caller would show.
GROWTH_BYTES = 8 << 20
LONG = {"ignore_eos": True, "temperature": 0}


@pytest.fixture
def specs(text_specs: list[ModelSpec]) -> list[ModelSpec]:
    return text_specs


@pytest.fixture
def gateway(text_gateway: RunningGateway) -> RunningGateway:
    return text_gateway


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with gateway.openai() as client:
        yield client
    gateway.until_idle()


def complete(client: openai.OpenAI, max_tokens: int = 24, **fields):
    extra = {**LONG, "return_token_ids": True, **fields.pop("extra_body", {})}
    return client.completions.create(
        model="long", prompt="hello", max_tokens=max_tokens, extra_body=extra, **fields
    )


def joined(stream) -> tuple[str, str | None]:
    """Text of a stream of completions, and its finish reason."""
    text, reason = "", None
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.text
            reason = choice.finish_reason or reason
    return text, reason


def test_a_completion_is_the_text_of_its_tokens(client: openai.OpenAI, specs) -> None:
    answer = complete(client)
    [choice] = answer.choices
    assert choice.finish_reason == "length"
    assert len(choice.token_ids) == 24
    assert choice.text == get_tokenizer(specs[0].path()).decode(
        choice.token_ids, skip_special_tokens=True
    )
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 24, 29)


def test_a_stream_has_the_same_text_and_ends_with_its_usage(client: openai.OpenAI) -> None:
    whole = complete(client).choices[0]
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == (whole.text, "length")
    assert [i for chunk in chunks for c in chunk.choices for i in c.token_ids] == whole.token_ids
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_completions_default_to_16_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="long", prompt="hello", extra_body=LONG)
    assert answer.usage.completion_tokens == 16


def test_a_chat_is_its_template_and_streams_the_same_text(client: openai.OpenAI) -> None:
    options = {"chat_template_kwargs": {"closing": "<over>"}}
    arguments = {"model": "long", "messages": MESSAGES, "max_completion_tokens": 12}
    whole = client.chat.completions.create(**arguments, extra_body={**LONG, **options})
    tokenized = client.post(
        "/../tokenize", cast_to=object, body={"model": "long", "messages": MESSAGES, **options}
    )
    text = "<system>be brief<user>hi é<over><assistant>"
    assert whole.usage.prompt_tokens == tokenized["count"] == len(text.encode())
    assert whole.choices[0].message.role == "assistant"
    stream = client.chat.completions.create(
        **arguments, stream=True, extra_body={**LONG, **options}
    )
    chunks = [chunk.choices[0] for chunk in stream]
    assert chunks[0].delta.role == "assistant"
    assert "".join(c.delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].finish_reason == "length"


def test_stop_strings_cut_exactly_streaming_and_not(client: openai.OpenAI) -> None:
    text = complete(client, 400).choices[0].text
    for stop in (text[30:37], text[41], "never" + text[20:25]):
        expected = text.partition(stop)[0]
        reason = "stop" if stop in text else "length"
        choice = complete(client, 400, stop=[stop, "not there"]).choices[0]
        assert (choice.text, choice.finish_reason) == (expected, reason)
        stream = complete(client, 400, stop=stop, stream=True)
        assert joined(stream) == (expected, reason)


def test_a_stop_string_ends_the_sequence_long_before_its_limit(
    client: openai.OpenAI, gateway: RunningGateway
) -> None:
    text = complete(client, 40).choices[0].text
    choice = complete(client, 20_000, stop=text[20:24]).choices[0]
    assert choice.finish_reason == "stop"
    assert len(choice.token_ids) <= 40
    gateway.until_idle()


def test_a_stop_token_is_no_text(client: openai.OpenAI, specs) -> None:
    ids = complete(client).choices[0].token_ids
    first = ids.index(ids[9])
    extra = {"stop_token_ids": [ids[9]]}
    for output in (
        complete(client, extra_body=extra).choices[0].text,
        joined(complete(client, stream=True, extra_body=extra))[0],
    ):
        assert output == get_tokenizer(specs[0].path()).decode(ids[:first])


def test_nothing_ends_before_min_tokens(client: openai.OpenAI) -> None:
    text = complete(client).choices[0].text
    choice = complete(client, stop=text[0], extra_body={"min_tokens": 20}).choices[0]
    assert len(choice.token_ids) >= 20
    assert choice.text.startswith(text[:5])


def test_n_sequences_per_prompt_in_order(client: openai.OpenAI) -> None:
    single = [
        client.completions.create(model="long", prompt=prompt, max_tokens=6, extra_body=LONG)
        for prompt in ("one", "two")
    ]
    texts = [answer.choices[0].text for answer in single]
    arguments = {"model": "long", "prompt": ["one", "two"], "max_tokens": 6, "n": 2}
    answer = client.completions.create(**arguments, extra_body=LONG)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert [c.text for c in answer.choices] == [texts[0], texts[0], texts[1], texts[1]]
    assert answer.usage.prompt_tokens == 6
    streamed = [""] * 4
    for chunk in client.completions.create(**arguments, stream=True, extra_body=LONG):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in answer.choices]


def test_token_ids_are_prompts_and_echo_goes_first(client: openai.OpenAI) -> None:
    as_text = complete(client).choices[0]
    ids = as_text.prompt_token_ids
    arguments = {"model": "long", "max_tokens": 24, "echo": True, "extra_body": LONG}
    for prompt in (ids, [ids], "hello"):
        choice = client.completions.create(prompt=prompt, **arguments).choices[0]
        assert choice.text == "hello" + as_text.text
        stream = client.completions.create(prompt=prompt, stream=True, **arguments)
        assert joined(stream)[0] == "hello" + as_text.text


def test_max_tokens_is_bounded_by_the_context(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="short", prompt="hello", max_tokens=10_000, extra_body=LONG
    )
    assert answer.usage.total_tokens == SHORT_CONTEXT
    assert answer.choices[0].finish_reason == "length"


def test_a_chat_without_a_limit_may_fill_the_context(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "hello"}]
    answer = client.chat.completions.create(model="short", messages=messages, extra_body=LONG)
    assert answer.usage.total_tokens == SHORT_CONTEXT
    assert answer.choices[0].finish_reason == "length"
    # More than the device could hold, which is told where it is asked for.
    with client.chat.completions.create(
        model="vast", messages=messages, stream=True, extra_body=LONG
    ) as stream:
        assert next(iter(stream)).choices
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="vast", messages=messages, max_tokens=1_000_000)
    assert caught.value.code == "insufficient_memory"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"model": "nobody"}, 404, "model_not_found"),
        ({"prompt": ""}, 400, "empty_prompt"),
        ({"prompt": []}, 400, "empty_prompt"),
        ({"prompt": [100_000]}, 400, "token_out_of_vocabulary"),
        ({"prompt": [-1]}, 400, "invalid_value"),
        ({"model": "short", "prompt": "x" * 100}, 400, "context_length_exceeded"),
        ({"max_tokens": 0}, 400, "invalid_value"),
        ({"temperature": 3}, 400, "invalid_value"),
        ({"stop": [""]}, 400, "invalid_value"),
        ({"n": 129}, 400, "invalid_value"),
        ({"suffix": "end"}, 400, "unsupported"),
        ({"best_of": 2, "n": 3}, 400, "invalid_value"),
        ({"extra_body": {"guess": 1}}, 400, "unknown_field"),
    ],
)
def test_errors_are_openai_errors(
    client: openai.OpenAI, fields: dict, status: int, code: str, stream: bool
) -> None:
    with refused(status) as caught:
        answer = client.completions.create(
            **{"model": "long", "prompt": "hello", "stream": stream, **fields}
        )
        assert stream, answer
        list(answer)
    assert caught[0].code == code
    assert caught[0].type == "invalid_request_error"


def test_a_prompt_that_is_too_long_is_told_both_lengths(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"100 tokens.*48 tokens"):
        client.completions.create(model="short", prompt="x" * 100)


def test_a_template_that_raises_is_the_callers_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no such words"):
        client.chat.completions.create(
            model="long", messages=[{"role": "user", "content": FORBIDDEN}]
        )


async def test_leaving_frees_the_sequences_in_both_modes(gateway: RunningGateway) -> None:
    async with gateway.openai_async() as client:
        arguments = {"model": "long", "prompt": "hello", "max_tokens": 20_000, "n": 2}
        stream = await client.completions.create(**arguments, stream=True, extra_body=LONG)
        async for _ in stream:
            break
        assert await asyncio.to_thread(gateway.active_requests) == 2
        await stream.close()
        await asyncio.to_thread(gateway.until_idle)

        call = asyncio.create_task(client.completions.create(**arguments, extra_body=LONG))
        await asyncio.to_thread(until, lambda: gateway.active_requests() == 2)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.to_thread(gateway.until_idle)


async def test_many_callers_share_one_gateway(gateway: RunningGateway) -> None:
    """With one request id for all of them."""
    async with gateway.openai_async() as client:

        async def one(number: int) -> str:
            answer = await client.completions.create(
                model="long",
                prompt=f"prompt {number % 4}",
                max_tokens=10,
                extra_body=LONG,
                extra_headers={"x-request-id": "the-same"},
            )
            return answer.choices[0].text

        texts = await asyncio.gather(*(one(number) for number in range(32)))
    assert [texts[number] == texts[number % 4] for number in range(32)] == [True] * 32


async def test_memory_stays_flat_while_callers_leave(gateway: RunningGateway) -> None:
    process = psutil.Process(gateway.daemon.pid)

    async def leave(client: httpx.AsyncClient, stream: bool) -> None:
        body = {"model": "long", "prompt": "hello", "max_tokens": 20_000, "stream": stream, **LONG}
        with suppress(httpx.ReadTimeout):
            async with client.stream("POST", "/v1/completions", json=body, timeout=0.2) as answer:
                async for _ in answer.aiter_bytes():
                    break

    async def many(count: int) -> None:
        async with gateway.http_async() as client:
            for _ in range(count // 20):
                await asyncio.gather(*(leave(client, number % 2 == 0) for number in range(20)))

    await many(100)
    before = process.memory_info().rss
    await many(200)
    assert process.memory_info().rss - before < GROWTH_BYTES
    await asyncio.to_thread(gateway.until_idle)
