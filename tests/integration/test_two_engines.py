"""Two engines on one node: both work, and neither's death or stop is seen by a client."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest

from aegaeon import LLMService, SamplingParams, StepOutput
from aegaeon.errors import AegaeonError
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import cluster_pb2, worker_pb2, worker_pb2_grpc
from tests.integration.daemons import START_S, until
from tests.integration.models import expected_tokens
from tests.integration.workload import ask, prompts, tiny_node, tokens_of

NEW_TOKENS = 400
CHECKED_TOKENS = 16
#: More than what routing leaves on one engine for the sake of the weights that are there.
PROMPTS = prompts(9)
SAMPLED_PROMPTS = (1, 4)
SAMPLED = SamplingParams(temperature=0.8, top_k=4, frequency_penalty=0.1, seed=77)
#: A hung worker is noticed in this time, from the scheduler's defaults.
HUNG_S = 5.0

Outputs = list[list[StepOutput] | AegaeonError]


@pytest.fixture(scope="module")
def models(tiny_models: list[ModelSpec]) -> list[ModelSpec]:
    return tiny_models[:2]


@pytest.fixture(scope="module")
def pair(models: list[ModelSpec], shm_dir: Path) -> Iterator[LLMService]:
    node = tiny_node(models, num_engines=2, shm_dir=str(shm_dir))
    with LLMService([node]) as service:
        until(lambda: serving(service, 2) == 2)
        yield service


@pytest.fixture(scope="module")
def expected(pair: LLMService, models: list[ModelSpec]) -> list[list[int]]:
    """Undisturbed tokens of all requests; the beginnings of those that are greedy are checked
    against `transformers`."""
    with load(pair, models) as running:
        undisturbed = [tokens_of(output) for output in running.result()]
    wanted = [row for spec in models for row in expected_tokens(spec, PROMPTS, CHECKED_TOKENS)]
    equal = [row[:CHECKED_TOKENS] == some for row, some in zip(undisturbed, wanted, strict=True)]
    assert equal == [
        number not in SAMPLED_PROMPTS for _ in models for number in range(len(PROMPTS))
    ]
    return undisturbed


def engines(service: LLMService) -> list[cluster_pb2.EngineInfo]:
    return [engine for engine in service.runtime().engines if engine.ready]


def serving(service: LLMService, models: int) -> int:
    """Engines that have so many models loaded: an engine that is back loads them again."""
    found = 0
    for worker in service.runtime().workers:
        with grpc.insecure_channel(worker.address) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            try:
                status = stub.GetStatus(worker_pb2.GetStatusRequest(), timeout=2)
            except grpc.RpcError:
                continue
        found += worker.connected and len(status.models) == models
    return found


def pid_of(service: LLMService, index: int) -> int:
    return next(w.pid for w in service.runtime().workers if w.worker_index == index)


@contextmanager
def load(service: LLMService, models: list[ModelSpec]) -> Iterator[Future[Outputs]]:
    """Requests for both models, under way on both engines; some are sampled."""
    requests = [
        ask(spec, prompt, NEW_TOKENS, sampling=SAMPLED if number in SAMPLED_PROMPTS else None)
        for spec in models
        for number, prompt in enumerate(PROMPTS)
    ]
    with ThreadPoolExecutor(1) as thread:
        service.reset()
        running = thread.submit(service.serve, requests)
        until(lambda: all(engine.tokens > 50 for engine in engines(service)))
        assert not running.done()
        yield running


def both_serve(service: LLMService, models: list[ModelSpec], expected: list[list[int]]) -> None:
    with load(service, models) as running:
        assert [tokens_of(output) for output in running.result()] == expected


def test_both_engines_work_and_agree(
    pair: LLMService, models: list[ModelSpec], expected: list[list[int]]
) -> None:
    both_serve(pair, models, expected)


def test_a_killed_worker_is_not_seen_and_its_successor_is_used(
    pair: LLMService, models: list[ModelSpec], expected: list[list[int]]
) -> None:
    killed = pid_of(pair, 0)
    stream = pair.stream(ask(models[0], PROMPTS[1], NEW_TOKENS, sampling=SAMPLED))
    streamed = [next(stream).new_token_id for _ in range(5)]
    with load(pair, models) as running:
        psutil.Process(killed).kill()
        streamed += [step.new_token_id for step in stream]
        assert [tokens_of(output) for output in running.result()] == expected
    assert streamed == expected[1]
    assert pair.runtime().statistics.recovered > 0
    until(lambda: serving(pair, 2) == 2, START_S)
    assert pid_of(pair, 0) != killed
    both_serve(pair, models, expected)


def test_a_stopped_worker_is_noticed_and_comes_back(
    pair: LLMService, models: list[ModelSpec], expected: list[list[int]]
) -> None:
    hung = psutil.Process(pid_of(pair, 1))
    try:
        with load(pair, models) as running:
            hung.send_signal(signal.SIGSTOP)
            until(lambda: len(engines(pair)) == 1, HUNG_S)
            assert [tokens_of(output) for output in running.result()] == expected
        hung.send_signal(signal.SIGCONT)
        until(lambda: serving(pair, 2) == 2)
        both_serve(pair, models, expected)
    finally:
        hung.send_signal(signal.SIGCONT)
