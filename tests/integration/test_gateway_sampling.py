"""Sampling and log-probabilities through the official `openai` package."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.integration.gateways import RunningGateway, refused

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(text_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with text_gateway.openai() as client:
        yield client
    text_gateway.until_idle()


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    extra = {"ignore_eos": True, "return_token_ids": True, **fields.pop("extra_body", {})}
    arguments = {"model": "long", "prompt": "hello", "max_tokens": 12, **fields}
    return client.completions.create(**arguments, extra_body=extra)


def ids(client: openai.OpenAI, **fields: Any) -> list[int]:
    return list(complete(client, **fields).choices[0].token_ids)


def test_a_seed_repeats_an_answer_alone_and_among_others(client: openai.OpenAI) -> None:
    drawn = ids(client, seed=7)
    assert ids(client, seed=7) == drawn
    assert ids(client, seed=8) != drawn
    assert ids(client) != ids(client)
    several = complete(client, seed=5, n=3).choices
    assert several[2].token_ids == drawn
    assert len({tuple(choice.token_ids) for choice in several}) == 3
    text = complete(client, seed=7).choices[0].text
    assert "".join(c.choices[0].text for c in complete(client, seed=7, stream=True)) == text


def test_what_leaves_one_token_is_greedy(client: openai.OpenAI) -> None:
    greedy = ids(client, temperature=0)
    assert ids(client, extra_body={"top_k": 1}) == greedy
    assert ids(client, extra_body={"min_p": 1.0}) == greedy
    assert ids(client, top_p=1e-9) == greedy


def test_a_bias_forces_and_forbids_tokens(client: openai.OpenAI) -> None:
    greedy = ids(client, temperature=0)
    assert ids(client, temperature=0, logit_bias={"9": 100}) == [9] * 12
    assert greedy[0] not in ids(client, temperature=0, logit_bias={str(greedy[0]): -100})


def test_penalties_end_repetition(client: openai.OpenAI) -> None:
    fields: Any = {"temperature": 0, "logit_bias": {"9": 100, "10": 70}, "max_tokens": 40}
    assert ids(client, **fields) == [9] * 40
    assert 10 in ids(client, **fields, frequency_penalty=2)
    assert ids(client, **fields, extra_body={"repetition_penalty": 100})[:2] == [9, 10]


@pytest.mark.parametrize(
    ("bias", "code"),
    [
        ({"191222": 1}, "token_out_of_vocabulary"),
        ({"-1": 1}, "invalid_value"),
        ({"a": 1}, "invalid_value"),
        ({"1": 101}, "invalid_value"),
        ({"1": None}, "invalid_value"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_bias_is_refused_and_harms_nobody(
    client: openai.OpenAI, bias: Any, code: str, stream: bool
) -> None:
    with refused(400) as caught:
        answer = complete(client, logit_bias=bias, stream=stream)
        assert stream, answer
        list(answer)
    assert caught[0].code == code
    assert len(ids(client)) == 12


def test_log_probabilities_of_completions(client: openai.OpenAI) -> None:
    choice = complete(client, temperature=0, logprobs=3).choices[0]
    found = choice.logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.text_offset) == 12
    for value, top in zip(found.token_logprobs, found.top_logprobs, strict=True):
        assert len(top) == 3
        assert value == max(top.values()) < 0
        assert sum(math.exp(other) for other in top.values()) <= 1
    parts = [c.choices[0] for c in complete(client, temperature=0, logprobs=3, stream=True)]
    assert [v for part in parts for v in part.logprobs.token_logprobs] == found.token_logprobs
    assert [o for part in parts for o in part.logprobs.text_offset] == found.text_offset


def test_log_probabilities_of_chats_spell_the_text(client: openai.OpenAI) -> None:
    arguments: Any = {"model": "long", "messages": MESSAGES, "max_tokens": 12, "seed": 3}
    asked: Any = {**arguments, "logprobs": True, "top_logprobs": 2}
    extra = {"ignore_eos": True, "skip_special_tokens": False}
    choice = client.chat.completions.create(**asked, extra_body=extra).choices[0]
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert [len(token.top_logprobs) for token in content] == [2] * 12
    data = b"".join(bytes(token.bytes or []) for token in content)
    assert data.decode(errors="replace") == choice.message.content
    with pytest.raises(openai.BadRequestError, match="top_logprobs"):
        client.chat.completions.create(**arguments, top_logprobs=2)
