"""Scoring prompts through the official `openai` package, as evaluation harnesses do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
import torch

from aegaeon.model_spec import ModelSpec
from tests.integration.gateways import RunningGateway
from tests.worker.engine.reference import reference_log_probabilities

TEXT = "hello world, how are you"
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture
def client(text_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with text_gateway.openai() as client:
        yield client
    text_gateway.until_idle()


def complete(client: openai.OpenAI, stream: bool = False, **fields: Any) -> list[dict[str, Any]]:
    """The choices by index, their parts joined."""
    extra = {"ignore_eos": True, "return_token_ids": True, **fields.pop("extra_body", {})}
    arguments = {"model": "long", "prompt": TEXT, "echo": True, "temperature": 0, **fields}
    answer = client.completions.create(**arguments, extra_body=extra, stream=stream)
    if not stream:
        return [choice.model_dump() for choice in answer.choices]
    joined: dict[int, dict[str, Any]] = {}
    for chunk in answer:
        for part in (choice.model_dump() for choice in chunk.choices):
            choice = joined.setdefault(part["index"], part)
            if choice is part:
                continue
            assert choice["finish_reason"] is None, "something after the end"
            choice["text"] += part["text"]
            choice["finish_reason"] = part["finish_reason"]
            choice["token_ids"] += part["token_ids"]
            for name, values in (part["logprobs"] or {}).items():
                choice["logprobs"][name] += values
    return [joined[index] for index in sorted(joined)]


def reference(specs: Sequence[ModelSpec], ids: Sequence[int]) -> list[float]:
    """Of every token but the first."""
    rows = reference_log_probabilities(specs[0].path(), ids)[:-1]
    return rows.gather(1, torch.tensor(list(ids[1:]))[:, None]).squeeze(1).tolist()


@STREAM
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("sampling", [{}, {"top_k": 1}, {"top_p": 0.5, "min_p": 0.1}], ids=str)
def test_an_echo_is_scored_with_what_follows_it(
    client: openai.OpenAI,
    text_specs: list[ModelSpec],
    max_tokens: int,
    sampling: dict[str, float],
    stream: bool,
) -> None:
    temperature = 1.0 if sampling else 0.0
    [choice] = complete(
        client,
        stream,
        max_tokens=max_tokens,
        logprobs=2,
        temperature=temperature,
        extra_body=sampling,
    )
    assert choice["finish_reason"] == "length"
    assert len(choice["token_ids"]) == max_tokens
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    found = choice["logprobs"]
    first, *own = found["token_logprobs"]
    assert first is None
    assert own == pytest.approx(reference(text_specs, ids), abs=1e-4)
    assert {len(values) for values in found.values()} == {len(ids)}
    first, *tops = found["top_logprobs"]
    assert first is None
    for value, top in zip(own, tops, strict=True):
        assert len(top) == 2
        assert value <= max(top.values()) < 0
        assert sum(math.exp(other) for other in top.values()) <= 1
    assert choice["text"].startswith(TEXT)
    spelled = "".join(found["tokens"])
    assert spelled.startswith(TEXT)
    starts = [len("".join(found["tokens"][:index])) for index in range(len(ids))]
    assert found["text_offset"] == starts


@STREAM
def test_what_harnesses_sum_is_the_likelihood_of_the_continuation(
    client: openai.OpenAI, text_specs: list[ModelSpec], stream: bool
) -> None:
    """Batches of token ids, one new token, which they leave out."""
    contexts = [[5, 6, 7, 8], [9], [200, 100, 50]]
    continuations = [[10, 11], [12, 13, 14, 15], [16]]
    ids = [[*a, *b] for a, b in zip(contexts, continuations, strict=True)]
    choices = complete(client, stream, prompt=ids, max_tokens=1, logprobs=1, seed=1234)
    for choice, context, whole in zip(choices, contexts, ids, strict=True):
        found = choice["logprobs"]
        values = found["token_logprobs"][len(context) : -1]
        expected = reference(text_specs, whole)[len(context) - 1 :]
        assert sum(values) == pytest.approx(sum(expected), abs=1e-4)
        tops = found["top_logprobs"][len(context) : -1]
        greedy = [value == max(top.values()) for value, top in zip(values, tops, strict=True)]
        rows = reference_log_probabilities(text_specs[0].path(), whole)[len(context) - 1 : -1]
        best = rows.argmax(-1).tolist()
        assert greedy == [a == b for a, b in zip(best, whole[len(context) :], strict=True)]


@STREAM
def test_several_answers_and_prompts_have_their_own(
    client: openai.OpenAI, text_specs: list[ModelSpec], stream: bool
) -> None:
    fields: Any = {"prompt": ["hello", "hi you"], "n": 3, "max_tokens": 2, "logprobs": 1}
    choices = complete(client, stream, temperature=1, seed=3, **fields)
    assert len(choices) == 6
    for choice in choices:
        ids = choice["prompt_token_ids"] + choice["token_ids"]
        own = choice["logprobs"]["token_logprobs"][1:]
        assert own == pytest.approx(reference(text_specs, ids), abs=1e-4)
    assert [choice["text"][:5] for choice in choices] == ["hello"] * 3 + ["hi yo"] * 3


@STREAM
@pytest.mark.parametrize("count", [0, 1])
def test_of_a_single_token_nothing_is_known(
    client: openai.OpenAI, count: int, stream: bool
) -> None:
    [choice] = complete(client, stream, prompt=[5], max_tokens=0, logprobs=count)
    found = choice["logprobs"]
    assert found["token_logprobs"] == found["top_logprobs"] == [None]
    assert len(found["tokens"]) == 1
    assert found["text_offset"] == [0]


def test_a_caller_that_leaves_amid_a_prompt_leaves_nothing(client: openai.OpenAI) -> None:
    ids = [(position * 7919) % 500 + 5 for position in range(20_000)]
    with client.completions.create(
        model="long", prompt=ids, echo=True, logprobs=5, max_tokens=5, stream=True
    ) as stream:
        next(iter(stream))  # the echo, of which nothing is computed yet
    assert len(complete(client, max_tokens=0, logprobs=1)[0]["token_ids"]) == 0


@STREAM
def test_a_long_prompt_is_told_in_full(
    client: openai.OpenAI, text_specs: list[ModelSpec], stream: bool
) -> None:
    ids = [(position * 7919) % 500 + 5 for position in range(2_500)]
    [choice] = complete(client, stream, prompt=ids, max_tokens=0, logprobs=0)
    own = choice["logprobs"]["token_logprobs"][1:]
    assert own == pytest.approx(reference(text_specs, ids), abs=1e-4)
    assert choice["logprobs"]["top_logprobs"][1:] == [{}] * (len(ids) - 1)


def test_the_best_of_many_come_with_their_prompt(client: openai.OpenAI) -> None:
    fields: Any = {"n": 2, "best_of": 4, "max_tokens": 3, "logprobs": 1, "temperature": 1}
    one, other = complete(client, seed=1, **fields)
    size = len(one["prompt_token_ids"])
    assert one["logprobs"]["token_logprobs"][:size] == other["logprobs"]["token_logprobs"][:size]


@STREAM
def test_an_echo_without_log_probabilities_may_make_nothing(
    client: openai.OpenAI, stream: bool
) -> None:
    [choice] = complete(client, stream, max_tokens=0)
    assert (choice["text"], choice["finish_reason"]) == (TEXT, "length")
    assert choice["logprobs"] is None


def test_nothing_made_is_nothing_in_the_usage(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="long", prompt=TEXT, echo=True, logprobs=1, max_tokens=0
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


@pytest.mark.parametrize("count", [0, 3])
def test_the_field_of_vllm_is_filled_in(
    client: openai.OpenAI, text_specs: list[ModelSpec], count: int
) -> None:
    extra = {"prompt_logprobs": count, "return_token_ids": True}
    text = client.completions.create(
        model="long", prompt=TEXT, max_tokens=2, temperature=0, extra_body=extra
    )
    chat = client.chat.completions.create(
        model="long",
        messages=[{"role": "user", "content": TEXT}],
        max_tokens=2,
        extra_body=extra,
    )
    [choice] = text.choices
    assert not choice.text.startswith(TEXT)
    for found, ids in (
        (choice.model_dump()["prompt_logprobs"], choice.prompt_token_ids),  # type: ignore[attr-defined]
        (chat.model_dump()["prompt_logprobs"], chat.prompt_token_ids),  # type: ignore[attr-defined]
    ):
        first, *rest = found
        assert first is None
        own = [entry[str(token)]["logprob"] for token, entry in zip(ids[1:], rest, strict=True)]
        assert own == pytest.approx(reference(text_specs, ids), abs=1e-4)
        for token, entry in zip(ids[1:], rest, strict=True):
            ranks = [told["rank"] for told in entry.values() if told["rank"] is not None]
            assert sorted(ranks) == list(range(1, count + 1))
            assert set(entry) == {str(token), *(k for k, v in entry.items() if v["rank"])}
            assert all(isinstance(told["decoded_token"], str) for told in entry.values())


@pytest.mark.parametrize(
    ("fields", "param", "number"),
    [
        ({"logprobs": 21}, "logprobs", "20"),
        ({"extra_body": {"prompt_logprobs": 21}}, "prompt_logprobs", "20"),
        ({"extra_body": {"prompt_logprobs": -1}}, "prompt_logprobs", "0"),
        ({"max_tokens": 0, "echo": False}, "max_tokens", "0"),
        ({"max_tokens": 0, "extra_body": {"min_tokens": 3}}, "min_tokens", "max_tokens (0)"),
        ({"stream": True, "extra_body": {"prompt_logprobs": 1}}, "prompt_logprobs", ""),
    ],
)
def test_what_cannot_be_told_is_refused_with_its_name(
    client: openai.OpenAI, fields: Any, param: str, number: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, **{"max_tokens": 1, **fields})
    assert caught.value.param == param
    assert number in str(caught.value)
