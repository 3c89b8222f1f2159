"""Clients of every kind, each of which must get its answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import httpx

from aegaeon import LLMService, StepOutput
from aegaeon.client.messages import to_generate_request
from aegaeon.errors import AegaeonError
from aegaeon.rpc.channel import open_channel
from aegaeon.v1 import inference_pb2_grpc
from tests.chaos.cluster import Cluster
from tests.chaos.oracle import MOST_TOKENS, Oracle, Question, scores_of
from tests.integration.workload import tokens_of

_Read = Callable[[httpx.AsyncClient, dict[str, Any]], Awaitable[list[int] | None]]

_RETRY_S = 0.1
#: What a caller of a single `Generate` answers by going on with the tokens that it has.
_LOST = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
}


class Load:
    """Draws clients; counts what they had to try again."""

    def __init__(self, cluster: Cluster, service: LLMService, oracle: Oracle) -> None:
        self._cluster = cluster
        self._service = service
        self._oracle = oracle
        self.retries = 0

    def draw(self, chance: random.Random) -> Callable[[], Awaitable[None]]:
        """A client that starts within half a second."""
        kinds: list[Callable[[Question, int], Awaitable[list[int]]]] = [
            self._serve,
            self._stream,
            self._stream,
            self._generate,
        ]
        questions = self._oracle.questions
        if self._cluster.gateway and chance.random() < 0.4:
            kinds = [self._complete, self._events]
            questions = [q for q in questions if q.model.name == "text"]
        kind, question = chance.choice(kinds), chance.choice(questions)
        count, delay_s = chance.randint(1, MOST_TOKENS), chance.uniform(0, 0.5)
        leaves = kind == self._stream and chance.random() < 0.3

        async def client() -> None:
            await asyncio.sleep(delay_s)
            if leaves:
                await self._leave(question)
                return
            try:
                got = await kind(question, count)
            except Exception as error:
                error.add_note(f"{kind.__name__} of {count} tokens of {question.model.name}")
                raise
            self._oracle.check(question, count, got)

        return client

    async def _serve(self, question: Question, count: int) -> list[int]:
        [output] = await self._service.serve_async([question.request(count)])
        return self._checked(question, output)

    async def _stream(self, question: Question, count: int) -> list[int]:
        stream = self._service.stream_async(question.request(count))
        return self._checked(question, [step async for step in stream])

    def _checked(self, question: Question, output: list[StepOutput] | AegaeonError) -> list[int]:
        """The tokens, with what came of the prompt looked at."""
        if question.scored:
            self._oracle.check_scores(question, scores_of(output))
        return tokens_of(output)

    async def _leave(self, question: Question) -> None:
        stream = self._service.stream_async(question.request(MOST_TOKENS))
        async for _ in stream:
            break
        await stream.aclose()

    async def _generate(self, question: Question, count: int) -> list[int]:
        """As a client without our library."""
        message = to_generate_request(question.request(count))
        got: list[int] = []
        scores: list[float] = []
        async with open_channel(self._cluster.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            while True:
                try:
                    del message.generated_token_ids[:]
                    message.generated_token_ids.extend(got)
                    message.told_prompt_tokens = 1 + len(scores)
                    async for response in stub.Generate(message):
                        scores += response.prompt_log_probabilities.logprobs
                        got += response.token_ids
                        if response.finish_reason:
                            if question.scored:
                                self._oracle.check_scores(question, scores)
                            return got
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _LOST:
                        raise
                self.retries += 1
                await asyncio.sleep(_RETRY_S)

    async def _complete(self, question: Question, count: int) -> list[int]:
        async def read(client: httpx.AsyncClient, body: dict[str, Any]) -> list[int] | None:
            answer = await client.post("/v1/completions", json=body)
            if answer.status_code != 200:
                return _check_refusal(answer.status_code, answer.text)
            return list(answer.json()["choices"][0]["token_ids"])

        return await self._over_http(question, count, read)

    async def _events(self, question: Question, count: int) -> list[int]:
        async def read(client: httpx.AsyncClient, body: dict[str, Any]) -> list[int] | None:
            request = client.stream("POST", "/v1/completions", json={**body, "stream": True})
            async with request as answer:
                if answer.status_code != 200:
                    return _check_refusal(answer.status_code, (await answer.aread()).decode())
                got: list[int] = []
                async for line in answer.aiter_lines():
                    if line == "data: [DONE]":
                        return got
                    if line.startswith("data: "):
                        got += _tokens(json.loads(line.removeprefix("data: ")))
            return None  # cut off

        return await self._over_http(question, count, read)

    async def _over_http(self, question: Question, count: int, read: _Read) -> list[int]:
        """HTTP has no resumption: a caller whose gateway is killed asks again."""
        body = {
            "model": question.model.name,
            "prompt": list(question.prompt),
            "max_tokens": count,
            "ignore_eos": True,
            "return_token_ids": True,
            "temperature": 0 if question.seed is None else 0.9,
            **({} if question.seed is None else {"top_p": 0.9, "seed": question.seed}),
        }
        while True:
            url = f"http://{self._cluster.gateway_address()}"
            try:
                async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                    tokens = await read(client, body)
            except httpx.TransportError:
                tokens = None
            if tokens is not None:
                return tokens
            self.retries += 1
            await asyncio.sleep(_RETRY_S)


def _tokens(chunk: dict[str, Any]) -> list[int]:
    assert "error" not in chunk, chunk
    return [token for choice in chunk["choices"] for token in choice["token_ids"]]


def _check_refusal(status: int, text: str) -> None:
    """Only these may be tried again."""
    assert status in (429, 503), f"{status}: {text}"
