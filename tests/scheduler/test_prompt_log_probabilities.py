"""Log-probabilities of prompts through the scheduler: packed, once each, ahead of new tokens."""

from __future__ import annotations

from collections import defaultdict

import grpc
import pytest

from aegaeon.errors import ErrorReason
from aegaeon.rpc.status import from_rpc_error
from aegaeon.v1 import inference_pb2
from tests.scheduler.conftest import Harness
from tests.scheduler.requests import generate_request, submit
from tests.scheduler.stub_model import answer, logprob


class Prompts:
    """What is told of prompts, by owner; checks its order and its values."""

    def __init__(self, prompts: dict[int, tuple[int, ...]], first: int = 1) -> None:
        self.prompts = prompts
        self.known: dict[int, int] = defaultdict(lambda: first)
        self.counts: dict[int, set[int]] = defaultdict(set)

    def take(self, told: inference_pb2.PromptLogProbabilities) -> None:
        owners = list(told.owners) or [0] * len(told.starts)
        own, top = (
            list(told.logprobs),
            list(zip(told.top_token_ids, told.top_logprobs, strict=True)),
        )
        for owner, start, size, count in zip(
            owners, told.starts, told.counts, told.top_counts, strict=True
        ):
            tokens = self.prompts[owner][start : start + size]
            assert start == self.known[owner], "a token twice, or never"
            self.known[owner] += size
            self.counts[owner].add(count)
            assert [own.pop(0) for _ in tokens] == [logprob(token) for token in tokens]
            rivals = [token + i for token in tokens for i in range(1, count + 1)]
            assert [top.pop(0) for _ in rivals] == [(rival, logprob(rival)) for rival in rivals]
        assert not own
        assert not top


@pytest.mark.parametrize(("count", "told"), [(0, 0), (3, 0), (20, 1), (2, 5), (2, 11)])
async def test_a_prompt_is_told_once_ahead_of_its_first_token(
    scheduler: Harness, count: int, told: int
) -> None:
    prompt = tuple(range(40, 51))
    request = generate_request(prompt, 8)
    request.prompt_logprobs, request.told_prompt_tokens = count, told
    prompts, tokens = Prompts({0: prompt}, max(1, told)), list[int]()
    async for message in scheduler.inference.Generate(request):
        assert not message.prompt_log_probabilities.owners
        assert not tokens or not message.HasField("prompt_log_probabilities")
        prompts.take(message.prompt_log_probabilities)
        tokens += message.token_ids
        assert not tokens or prompts.known[0] == len(prompt)
    assert tokens == answer(prompt, 8)
    assert prompts.counts[0] == ({count} if told < len(prompt) else set())


async def test_in_a_session_every_request_gets_its_own(scheduler: Harness) -> None:
    asked = {i: {1: 0, 2: 1, 3: 20}.get(i % 7) for i in range(1, 61)}
    prompts = Prompts({i: tuple(range(i, i + 1 + i % 9)) for i in asked})
    call = scheduler.inference.Session()
    for i, count in asked.items():
        request = generate_request(prompts.prompts[i], 5)
        if count is not None:
            request.prompt_logprobs = count
        await call.write(submit(i, request))
    await call.done_writing()
    tokens: dict[int, list[int]] = defaultdict(list)
    async for message in call:
        prompts.take(message.prompt_log_probabilities)
        for stream_id, token in zip(message.stream_ids, message.token_ids, strict=True):
            tokens[stream_id].append(token)
            if asked[stream_id] is not None:
                assert prompts.known[stream_id] == len(prompts.prompts[stream_id])
    assert tokens == {i: answer(prompts.prompts[i], 5) for i in asked}
    for i, count in asked.items():
        told = count is not None and len(prompts.prompts[i]) > 1
        assert prompts.counts[i] == ({count} if told else set())
    await scheduler.settled()


@pytest.mark.parametrize(
    ("count", "told", "words"),
    [
        (21, 0, ["prompt_logprobs", "21", "0 to 20"]),
        (1, 4, ["told_prompt_tokens", "4", "3 tokens"]),
    ],
)
async def test_more_than_there_is_is_refused_with_its_number(
    scheduler: Harness, count: int, told: int, words: list[str]
) -> None:
    request = generate_request((5, 6, 7), 8)
    request.prompt_logprobs, request.told_prompt_tokens = count, told
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in scheduler.inference.Generate(request):
            pass
    error = from_rpc_error(caught.value)
    assert error.reason is ErrorReason.INVALID_FIELD
    assert all(word in str(error) for word in words)
