"""Cases that broke other systems, over HTTP, streamed and not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.integration.daemons import until
from tests.integration.gateways import RunningGateway
from tests.integration.text_model import ADDED, SHORT_CONTEXT
from tests.worker.models.tiny import VOCAB_SIZE

ADDED_ID = VOCAB_SIZE - 1
END_ID = 2
# What the scheduler refuses is an error of a stream that has begun, where that takes a second.
STREAM = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
def client(text_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with text_gateway.openai() as client:
        yield client
    text_gateway.until_idle()


def complete(client: openai.OpenAI, *, stream: bool, **fields: Any) -> tuple[str, str | None]:
    """Text and finish reason of the first answer."""
    asked = {"model": "long", "prompt": "hello", "max_tokens": 24, "temperature": 0, **fields}
    if not stream:
        choice = client.completions.create(**asked).choices[0]
        return choice.text, choice.finish_reason
    text, reason = "", None
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            text += choice.text
            reason = choice.finish_reason or reason
    return text, reason


@STREAM
def test_an_answer_that_ends_within_a_character_is_sound(
    client: openai.OpenAI, stream: bool
) -> None:
    # A token is a byte of it.
    face = {"guided_choice": ["a🙂b"]}
    for count, expected in [(1, "a"), (2, "a\ufffd"), (4, "a\ufffd"), (5, "a🙂")]:
        text = complete(client, stream=stream, max_tokens=count, extra_body=face)
        assert text == (expected, "length")
    assert complete(client, stream=stream, extra_body=face) == ("a🙂b", "stop")


@STREAM
def test_no_part_of_a_stop_string_is_shown(client: openai.OpenAI, stream: bool) -> None:
    said = {"guided_choice": ["ABCDEFGHIJKL"]}
    for stop, shown in [("DEFGHIJ", "ABC"), ("DEFGX", "ABCDEFGHIJKL"), (["X", "FG"], "ABCDE")]:
        assert complete(client, stream=stream, extra_body=said, stop=stop) == (shown, "stop")


@STREAM
def test_an_added_token_with_a_space_is_shown_as_it_is(client: openai.OpenAI, stream: bool) -> None:
    always = {"logit_bias": {str(ADDED_ID): 100}, "max_tokens": 3}
    assert complete(client, stream=stream, **always) == (ADDED * 3, "length")


@STREAM
def test_a_special_token_is_text_on_demand_alone(client: openai.OpenAI, stream: bool) -> None:
    always = {"logit_bias": {str(END_ID): 100}, "max_tokens": 2}
    assert complete(client, stream=stream, **always) == ("", "stop")
    shown = {"ignore_eos": True, "skip_special_tokens": False}
    assert complete(client, stream=stream, extra_body=shown, **always) == ("<stop>" * 2, "length")
    skipped = {"ignore_eos": True}
    assert complete(client, stream=stream, extra_body=skipped, **always) == ("", "length")


@STREAM
def test_ignoring_ends_leaves_the_callers_own(client: openai.OpenAI, stream: bool) -> None:
    always = {"logit_bias": {str(END_ID): 100}, "max_tokens": 5}
    own = {"ignore_eos": True, "stop_token_ids": [END_ID]}
    assert complete(client, stream=stream, extra_body=own, **always) == ("", "stop")


@STREAM
@pytest.mark.parametrize("prompt", ["", [""], [], [[]]])
def test_an_empty_prompt_hurts_nobody(client: openai.OpenAI, prompt: Any, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, stream=stream, prompt=prompt)
    assert caught.value.code == "empty_prompt"
    assert complete(client, stream=stream)[1] == "length"


@STREAM
def test_a_prompt_is_cut_at_its_callers_wish_alone_and_the_reply_says_so(
    client: openai.OpenAI, stream: bool
) -> None:
    asked: Any = {"model": "short", "prompt": "x" * 90 + "hello", "max_tokens": 4}
    with pytest.raises(openai.APIError, match=rf"95 tokens.*{SHORT_CONTEXT} tokens"):
        complete(client, stream=stream, **asked)
    for wish, kept in [(5, 5), (-1, SHORT_CONTEXT - 4), (200, None)]:
        fields = {"truncate_prompt_tokens": wish, "return_token_ids": True}
        call = {**asked, "extra_body": fields, "stream": stream}
        if kept is None:
            with pytest.raises(openai.BadRequestError):
                client.completions.create(**call)
            continue
        answer = client.completions.create(**call)
        answer = next(iter(answer)) if stream else answer
        assert answer.truncated_prompt_tokens == 95 - kept
        assert len(answer.choices[0].prompt_token_ids) == kept


@STREAM
@pytest.mark.parametrize(
    ("bias", "code"),
    [
        ({"191222": 1}, "token_out_of_vocabulary"),
        ({"-1": 1}, "invalid_value"),
        ({"one": 1}, "invalid_value"),
        ({"1.5": 1}, "invalid_value"),
        ({"5": 101}, "invalid_value"),
    ],
)
def test_a_wrong_bias_is_told(client: openai.OpenAI, bias: Any, code: str, stream: bool) -> None:
    with pytest.raises(openai.APIError) as caught:
        complete(client, stream=stream, logit_bias=bias)
    assert caught.value.code == code


@STREAM
@pytest.mark.parametrize(
    "fields",
    [
        {"echo": True, "logprobs": 21, "extra_body": {"top_k": 1}},
        {"max_tokens": 0},
        {"echo": True, "max_tokens": -1},
    ],
)
def test_what_cannot_be_scored_is_told(client: openai.OpenAI, fields: Any, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError):
        complete(client, stream=stream, **fields)


async def test_a_request_id_may_be_used_by_many_and_again_at_once(
    text_gateway: RunningGateway,
) -> None:
    async with text_gateway.openai_async() as client:
        asked: Any = {
            "model": "long",
            "prompt": "hello",
            "temperature": 0,
            "extra_headers": {"x-request-id": "mine"},
        }
        [expected] = (await client.completions.create(**asked)).choices
        endless = {**asked, "max_tokens": 20_000, "extra_body": {"ignore_eos": True}}
        for _ in range(5):
            stream = await client.completions.create(**endless, stream=True)
            async for _ in stream:
                break
            other = asyncio.create_task(client.completions.create(**endless))
            await asyncio.to_thread(until, lambda: text_gateway.active_requests() == 2)
            # The one is given up, and its id taken by a new one at the same moment.
            close = asyncio.create_task(stream.close())
            [choice] = (await client.completions.create(**asked)).choices
            assert choice.text == expected.text
            await close
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
            await asyncio.to_thread(text_gateway.until_idle)


def test_the_best_of_many_are_the_most_probable(client: openai.OpenAI) -> None:
    asked: Any = {"model": "long", "prompt": ["hello", "world"], "max_tokens": 6, "seed": 1}
    every = client.completions.create(**asked, n=6, logprobs=0)
    best = client.completions.create(**asked, n=2, best_of=6)
    assert [choice.index for choice in best.choices] == [0, 1, 2, 3]
    assert all(choice.logprobs is None for choice in best.choices)
    assert best.usage.completion_tokens == every.usage.completion_tokens
    for prompt in range(2):
        group = every.choices[6 * prompt : 6 * prompt + 6]

        def score(choice: Any) -> float:
            values = choice.logprobs.token_logprobs
            return sum(values) / len(values)

        expected = [choice.text for choice in sorted(group, key=score, reverse=True)[:2]]
        assert [c.text for c in best.choices[2 * prompt : 2 * prompt + 2]] == expected
    with pytest.raises(openai.BadRequestError):
        client.completions.create(**asked, best_of=2, stream=True)
