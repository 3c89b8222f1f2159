"""Dedicated prefill and decode engines: the same tokens, and no loss of either is seen."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from aegaeon import LLMService, Request, StepOutput
from aegaeon.config.schema import SchedulingPolicyName
from aegaeon.errors import AegaeonError
from aegaeon.model_spec import ModelSpec
from aegaeon.sampling import SamplingParams
from aegaeon.v1 import cluster_pb2
from tests.integration.daemons import START_S, restart_command, until
from tests.integration.models import expected_tokens
from tests.integration.workload import ask, prompts, tiny_node, tokens_of

NEW_TOKENS = 120
CHECKED_TOKENS = 16
PROMPTS = prompts(4)
PREFILL, DECODE = cluster_pb2.ENGINE_ROLE_PREFILL, cluster_pb2.ENGINE_ROLE_DECODE

Outputs = list[list[StepOutput] | AegaeonError]


@pytest.fixture(scope="module")
def expected(service: LLMService, tiny_models: list[ModelSpec]) -> list[list[int]]:
    """Tokens of a simple engine; those of greedy requests are checked against `transformers`."""
    tokens = [tokens_of(output) for output in service.serve(requests(tiny_models))]
    wanted = [row for spec in tiny_models for row in expected_tokens(spec, PROMPTS, CHECKED_TOKENS)]
    assert [row[:CHECKED_TOKENS] for row in tokens[: len(wanted)]] == wanted
    return tokens


def requests(models: list[ModelSpec]) -> list[Request]:
    """Greedy ones, and one per model that draws its tokens by a seed."""
    greedy = [ask(spec, prompt, NEW_TOKENS) for spec in models for prompt in PROMPTS]
    drawing = SamplingParams(temperature=0.8, seed=11)
    return greedy + [ask(spec, PROMPTS[1], NEW_TOKENS, sampling=drawing) for spec in models]


def dedicated(
    models: list[ModelSpec],
    shm_dir: Path,
    policy: SchedulingPolicyName = "published",
    decode_engines: int = 1,
    daemon_restarts: int = 5,
) -> LLMService:
    node = tiny_node(
        models,
        num_engines=0,
        num_prefill_engines=1,
        num_decode_engines=decode_engines,
        shm_dir=str(shm_dir),
    )
    return LLMService(
        [node],
        scheduling_policy=policy,
        decode_work_stealing=True,
        daemon_restarts=daemon_restarts,
    )


@contextmanager
def load(
    service: LLMService, models: list[ModelSpec], role: int, tokens: int
) -> Iterator[Future[Outputs]]:
    """All requests, under way; engines of a role have made so many tokens of them."""
    service.reset()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(service.serve, requests(models))
        until(lambda: tokens_by_role(service)[role] >= tokens, START_S)
        assert not running.done()
        yield running


def tokens_by_role(service: LLMService) -> dict[int, int]:
    found = {PREFILL: 0, DECODE: 0}
    for engine in service.runtime().engines:
        found[engine.role] += engine.tokens
    return found


def test_tokens_equal_those_of_a_simple_engine(
    tiny_models: list[ModelSpec], shm_dir: Path, expected: list[list[int]]
) -> None:
    with dedicated(tiny_models, shm_dir, "deadline") as service:
        service.reset()
        outputs = [tokens_of(output) for output in service.serve(requests(tiny_models))]
        assert outputs == expected
        statistics = service.runtime().statistics
        assert statistics.handed_off == len(expected)
        assert statistics.recomputed == 0
        assert tokens_by_role(service)[PREFILL] == len(expected)
        assert not any(engine.held_sequences for engine in service.runtime().engines)


def test_two_decode_engines_share_the_work_with_stealing(
    tiny_models: list[ModelSpec], shm_dir: Path, expected: list[list[int]]
) -> None:
    with dedicated(tiny_models, shm_dir, decode_engines=2) as service:
        with load(service, tiny_models, DECODE, 50) as running:
            assert [tokens_of(output) for output in running.result()] == expected
        assert service.runtime().statistics.handed_off == len(expected)

        def shared() -> bool:
            """A model is ready once one of them has it, so that the other may have come too late
            for some rounds."""
            outputs = [tokens_of(output) for output in service.serve(requests(tiny_models))]
            assert outputs == expected
            return all(e.tokens for e in service.runtime().engines if e.role == DECODE)

        until(shared, START_S)


@pytest.mark.parametrize(("index", "role", "tokens"), [(0, PREFILL, 3), (1, DECODE, 50)])
def test_the_loss_of_either_engine_is_not_seen(
    index: int,
    role: int,
    tokens: int,
    tiny_models: list[ModelSpec],
    shm_dir: Path,
    expected: list[list[int]],
) -> None:
    with dedicated(tiny_models, shm_dir, daemon_restarts=0) as service:
        killed = next(w.pid for w in service.runtime().workers if w.worker_index == index)
        command = restart_command(killed)
        with load(service, tiny_models, role, tokens) as running:
            psutil.Process(killed).kill()
            assert [tokens_of(output) for output in running.result()] == expected
        assert len(service.runtime().engines) == 1
        # The one that is left does both stages, until the other one is back.
        again = ask(tiny_models[0], PROMPTS[1], NEW_TOKENS)
        assert tokens_of(service.serve([again])[0]) == expected[1]
        successor = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            until(lambda: hands_off(service, again), START_S)
            assert tokens_of(service.serve([again])[0]) == expected[1]
        finally:
            successor.terminate()
            assert successor.wait(20) == 0


def hands_off(service: LLMService, request: Request) -> bool:
    """Whether a request goes through both engines."""
    service.reset()
    service.serve([request])
    return service.runtime().statistics.handed_off == 1
