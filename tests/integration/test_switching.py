"""Several models on one engine whose device holds one of them."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from aegaeon import LLMService
from aegaeon.model_spec import ModelSpec
from tests.integration.daemons import until
from tests.integration.models import expected_tokens
from tests.integration.workload import ask, prompts, tokens_of

NEW_TOKENS = 48
PROMPTS = prompts(6)


@pytest.fixture(scope="module")
def expected(tiny_models: list[ModelSpec]) -> dict[str, list[list[int]]]:
    return {spec.name: expected_tokens(spec, PROMPTS, NEW_TOKENS) for spec in tiny_models}


def turns(service: LLMService) -> int:
    return sum(engine.turns for engine in service.runtime().engines)


def switches(service: LLMService) -> int:
    [engine] = service.runtime().engines
    return int(engine.switches)


def test_the_device_holds_one_running_model(
    service: LLMService, tiny_models: list[ModelSpec]
) -> None:
    """What the other tests here stand on: two chunks, for the weights and the KV of one model."""
    [worker] = service.runtime().workers
    chunk = worker.device.chunk_bytes
    assert worker.device.pool_bytes == 2 * chunk
    stream = service.stream(ask(tiny_models[0], [5], 4_000))
    next(stream)
    until(lambda: usage(service) == (chunk, chunk))
    stream.close()


def usage(service: LLMService) -> tuple[int, int]:
    [worker] = service.runtime().workers
    return worker.usage.device_weight_bytes, worker.usage.device_kv_bytes


@pytest.mark.parametrize("count", [2, 3])
def test_models_at_once_give_the_tokens_of_transformers(
    service: LLMService,
    tiny_models: list[ModelSpec],
    expected: dict[str, list[list[int]]],
    count: int,
) -> None:
    jobs = [(spec, number) for spec in tiny_models[:count] for number in range(len(PROMPTS))]
    random.Random(count).shuffle(jobs)
    before = switches(service)
    outputs = service.serve([ask(spec, PROMPTS[number], NEW_TOKENS) for spec, number in jobs])
    for (spec, number), output in zip(jobs, outputs, strict=True):
        assert tokens_of(output) == expected[spec.name][number], (spec.name, number)
    assert switches(service) - before >= count - 1


def test_two_clients_that_alternate_models_both_get_every_token(
    service: LLMService, tiny_models: list[ModelSpec], expected: dict[str, list[list[int]]]
) -> None:
    def serve(client: LLMService, order: list[ModelSpec]) -> None:
        for spec in order * 3:
            outputs = client.serve([ask(spec, prompt, NEW_TOKENS) for prompt in PROMPTS[:3]])
            assert [tokens_of(output) for output in outputs] == expected[spec.name][:3]

    one, other = tiny_models[:2]
    before = switches(service)
    with LLMService(address=service.address) as attached, ThreadPoolExecutor() as threads:
        both = [
            threads.submit(serve, service, [one, other]),
            threads.submit(serve, attached, [other, one]),
        ]
        for running in both:
            running.result()
    assert switches(service) > before


def test_switching_away_and_back_changes_nothing(
    service: LLMService, tiny_models: list[ModelSpec], expected: dict[str, list[list[int]]]
) -> None:
    there, away = tiny_models[1:]
    before = switches(service)
    for spec in (there, away, there):
        [output] = service.serve([ask(spec, PROMPTS[4], NEW_TOKENS)])
        assert tokens_of(output) == expected[spec.name][4]
    assert switches(service) - before >= 2


def test_a_request_under_way_survives_the_other_models(
    service: LLMService, tiny_models: list[ModelSpec]
) -> None:
    """KV and place of a sequence are kept while other models have the device."""
    long, *others = tiny_models
    [wanted] = expected_tokens(long, [PROMPTS[2]], 400)
    before = turns(service)
    stream = service.stream(ask(long, PROMPTS[2], 400))
    got = [next(stream).new_token_id for _ in range(10)]
    for spec in others:
        # Due at once: what does not fit the device beside it would wait for its end otherwise.
        urgent = ask(spec, PROMPTS[1], NEW_TOKENS, ttft_slo_s=0.001)
        tokens_of(service.serve([urgent])[0])
    got += [step.new_token_id for step in stream]
    assert got == wanted
    assert turns(service) - before >= 2 * len(others)
