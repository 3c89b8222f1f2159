"""Log-probabilities of prompts come with the first token, whatever happens to the stream."""

from __future__ import annotations

import pytest

from aegaeon import LLMService, Request, StepOutput
from aegaeon.errors import AegaeonError, InvalidRequestError
from tests.client.conftest import RunningStub


def request(prompt: list[int], count: int | None, tokens: int = 3) -> Request:
    return Request("echo", 0.0, 0, prompt, tokens, prompt_logprobs=count)


def check(outcome: list[StepOutput] | AegaeonError, prompt: list[int], count: int) -> None:
    assert not isinstance(outcome, AegaeonError), outcome
    first, *rest = outcome
    assert [step.new_token_id for step in outcome] == [prompt[-1] + i for i in range(1, 4)]
    assert outcome[-1].finish_reason == "length"
    assert all(step.prompt_logprobs is None for step in rest)
    assert first.prompt_logprobs is not None
    begin, *told = first.prompt_logprobs
    assert begin is None
    for token, entry in zip(prompt[1:], told, strict=True):
        assert entry is not None
        assert entry.logprob == -token
        assert entry.top_logprobs == {token + i: -(token + i) for i in range(count)}


def test_every_request_gets_its_own(service: LLMService) -> None:
    prompts = [[5], [5, 6], [5, 6, 7, 8], list(range(50, 70))]
    counts = [1, 0, 20, 3]
    asked = [request(prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
    *outcomes, plain = service.serve([*asked, request([5, 6, 7], None)])
    for outcome, prompt, count in zip(outcomes, prompts, counts, strict=True):
        check(outcome, prompt, count)
    assert isinstance(plain, list)
    assert all(step.prompt_logprobs is None for step in plain)


@pytest.mark.parametrize("breaks", [[2], [4], [1, 1, 1], [6, 2], [8], [9]])
def test_a_broken_stream_neither_loses_nor_doubles_tokens_of_prompts(
    service: LLMService, stub: RunningStub, breaks: list[int]
) -> None:
    stub.state.break_after = list(breaks)
    prompt = list(range(20, 28))
    [outcome] = service.serve([request(prompt, 2)])
    check(outcome, prompt, 2)
    told = [submit.request.told_prompt_tokens for submit in stub.state.submits]
    assert len(told) == len(breaks) + 1
    assert told == sorted(told)
    assert told[-1] >= min(sum(breaks), 7)


def test_what_is_no_number_is_refused(service: LLMService) -> None:
    [outcome] = service.serve([request([5, 6], -1)])
    assert isinstance(outcome, InvalidRequestError)
    assert "prompt_logprobs = -1" in str(outcome)
