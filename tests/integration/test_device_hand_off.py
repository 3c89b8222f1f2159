"""KV goes from one worker's device to another's, by daemons, and outlives the loss of either."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from aegaeon import LLMService, Request
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import cluster_pb2
from tests.integration.daemons import START_S, until
from tests.integration.models import expected_tokens
from tests.integration.workload import ask, prompts, tiny_node, tokens_of

PROMPTS = prompts(6)
NEW_TOKENS = 40
DEVICE, SLABS = cluster_pb2.KV_TRANSPORT_DEVICE, cluster_pb2.KV_TRANSPORT_SLABS
PREFILL, DECODE = 0, 1


@pytest.fixture(scope="module")
def model(tiny_models: list[ModelSpec]) -> ModelSpec:
    return tiny_models[0]


@pytest.fixture(scope="module")
def expected(model: ModelSpec) -> list[list[int]]:
    return expected_tokens(model, PROMPTS, NEW_TOKENS)


@contextmanager
def dedicated(model: ModelSpec, shm_dir: Path) -> Iterator[LLMService]:
    """One engine for prefill and one for decoding, with room for every sequence."""
    node = tiny_node(
        [model],
        num_engines=0,
        num_prefill_engines=1,
        num_decode_engines=1,
        device_memory_bytes=96 << 20,
        shm_dir=str(shm_dir),
    )
    with LLMService([node], daemon_restarts=0) as service:
        service.reset()
        yield service


def asked(model: ModelSpec) -> list[Request]:
    return [ask(model, prompt, NEW_TOKENS) for prompt in PROMPTS]


def worker(service: LLMService, index: int) -> psutil.Process:
    pids = {w.worker_index: w.pid for w in service.runtime().workers}
    return psutil.Process(pids[index])


def test_all_kv_goes_from_device_to_device_and_nothing_is_left(
    model: ModelSpec, shm_dir: Path, expected: list[list[int]]
) -> None:
    with dedicated(model, shm_dir) as service:
        before: list[int] = []
        for served in range(1, 4):
            outputs = [tokens_of(output) for output in service.serve(asked(model))]
            assert outputs == expected
            [link] = service.runtime().kv_links
            assert (link.transport, link.transfers) == (DEVICE, served * len(PROMPTS))
            assert (link.device_obstacle, link.bytes > 0) == ("", True)
            descriptors = [worker(service, index).num_fds() for index in (PREFILL, DECODE)]
            assert descriptors == (before or descriptors)
            before = descriptors
        assert not any(engine.held_sequences for engine in service.runtime().engines)
        assert service.runtime().statistics.recomputed == 0
        offers = shm_dir.glob("aegaeon-*/kv/device-*/*")
        assert [path.name for path in offers] == ["socket"]


@pytest.mark.parametrize("killed", [PREFILL, DECODE])
def test_either_worker_may_be_killed_while_kv_is_offered(
    killed: int, model: ModelSpec, shm_dir: Path, expected: list[list[int]]
) -> None:
    with dedicated(model, shm_dir) as service, ThreadPoolExecutor(1) as thread:
        reader = worker(service, DECODE)
        victim = worker(service, killed)
        reader.suspend()  # so that what is offered is not taken before the kill
        running = thread.submit(service.serve, asked(model))
        until(lambda: service.runtime().statistics.handed_off > 0, START_S)
        victim.kill()
        if killed == PREFILL:
            reader.resume()
        assert [tokens_of(output) for output in running.result()] == expected


def test_a_reader_without_room_takes_kv_from_the_slabs_and_says_so(
    tiny_models: list[ModelSpec], shm_dir: Path, expected: list[list[int]]
) -> None:
    """The device of both workers holds one of two models, so that KV finds room by luck alone."""
    node = tiny_node(
        tiny_models,
        num_engines=0,
        num_prefill_engines=1,
        num_decode_engines=1,
        shm_dir=str(shm_dir),
    )
    with LLMService([node], daemon_restarts=0) as service:
        service.reset()
        requests = [request for model in tiny_models for request in asked(model)]
        outputs = [tokens_of(output) for output in service.serve(requests)]
        assert outputs[: len(PROMPTS)] == expected
        links = {link.transport: link for link in service.runtime().kv_links}
        assert sum(link.transfers for link in links.values()) == len(requests)
        if SLABS in links:
            assert links[SLABS].device_obstacle
