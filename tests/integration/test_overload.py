"""More than can be served: clear answers, and nobody pays for another."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import openai
import pytest

from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.daemons import until
from tests.integration.gateways import RunningGateway, running_gateway

MAX_REQUESTS = 12
BODY = {"model": "long", "prompt": "hello", "ignore_eos": True, "temperature": 0}
#: Tokens that a reader who has stopped would have to take.
MANY = 20_000


@pytest.fixture(scope="module")
def gateway(
    text_specs: list[ModelSpec], tmp_path_factory: pytest.TempPathFactory, shm_dir: Path
) -> Iterator[RunningGateway]:
    with running_gateway(
        tmp_path_factory.mktemp("over"), shm_dir, text_specs, max_requests=MAX_REQUESTS
    ) as running:
        yield running


async def test_callers_beyond_the_limit_are_told_when_to_come_again(
    gateway: RunningGateway,
) -> None:
    async with gateway.http_async() as client:
        body = {**BODY, "max_tokens": 400}
        calls = [client.post("/v1/completions", json=body) for _ in range(3 * MAX_REQUESTS)]
        answers = await asyncio.gather(*calls)
    served = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(served) + len(refused) == len(answers)
    assert len(served) >= MAX_REQUESTS // 2
    assert refused
    for answer in refused:
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(answer.headers["retry-after"]) >= 1
        assert 100 <= int(answer.headers["retry-after-ms"]) <= 30_000
    await asyncio.to_thread(gateway.until_idle)


async def test_callers_that_follow_the_hint_are_all_served(gateway: RunningGateway) -> None:
    client = openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=30, timeout=60
    )
    async with client:
        answers = await asyncio.gather(
            *(
                client.completions.create(
                    model="long", prompt="hello", max_tokens=50, extra_body={"ignore_eos": True}
                )
                for _ in range(3 * MAX_REQUESTS)
            )
        )
    assert all(answer.usage.completion_tokens == 50 for answer in answers)
    await asyncio.to_thread(gateway.until_idle)


def test_a_reader_that_stops_costs_nobody_anything(gateway: RunningGateway) -> None:
    """One of each kind: HTTP, a gRPC call and a gRPC session."""
    host, port = gateway.daemon.address.split(":")
    message = inference_pb2.GenerateRequest(
        model="long",
        prompt_token_ids=[5, 6, 7],
        stop=inference_pb2.StopConditions(max_new_tokens=MANY, ignore_eos=True),
    )
    submit = inference_pb2.SessionSubmit(stream_id=1, request=message)
    with (
        socket.create_connection((host, int(port))) as silent,
        grpc.insecure_channel(gateway.scheduler.address) as channel,
        gateway.http() as client,
    ):
        silent.sendall(_post({**BODY, "max_tokens": MANY, "stream": True}))
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        calls = [
            stub.Generate(message),
            stub.Session(iter([inference_pb2.SessionRequest(submit=submit)])),
        ]
        until(lambda: gateway.active_requests() == 3)
        alone_s = min(_time(client) for _ in range(3))
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            assert _time(client) < 20 * alone_s + 1
        for call in calls:
            call.cancel()
    gateway.until_idle()


def _time(client: httpx.Client) -> float:
    start = time.monotonic()
    answer = client.post("/v1/completions", json={**BODY, "max_tokens": 20})
    assert answer.status_code == 200, answer.text
    return time.monotonic() - start


def _post(body: dict[str, object]) -> bytes:
    request = httpx.Request("POST", "http://gateway/v1/completions", json=body)
    lines = [f"{name}: {value}" for name, value in request.headers.items()]
    head = "\r\n".join(["POST /v1/completions HTTP/1.1", *lines, "", ""])
    return head.encode() + request.read()
