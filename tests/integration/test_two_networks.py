"""Prefill and decoding on two machines, as far as the network is concerned, with a slow cable."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from aegaeon import LLMService
from aegaeon.model_spec import ModelSpec
from aegaeon.sampling import SamplingParams
from tests.integration.daemons import START_S, until
from tests.integration.network import Network, network
from tests.integration.two_nodes import TwoNodes, two_nodes, wide_model, wire
from tests.integration.workload import ask, prompts, tokens_of

NEW_TOKENS = 12
#: 13 and 8 MiB of KV: most of a second on the cable.
PROMPTS = [(prompts(3)[number] * 500)[:length] for number, length in ((1, 400), (2, 250))]
SAMPLED = SamplingParams(temperature=0.8, seed=11)
ROLES = {"a/0": "prefill", "b/0": "decode"}

Tokens = list[list[int]]


@pytest.fixture(scope="module")
def apart(
    tmp_path_factory: pytest.TempPathFactory, shm_dir: Path
) -> Iterator[tuple[TwoNodes, LLMService, Tokens]]:
    """A prefill and a decode engine, and what they answer while nothing is wrong."""
    folder = tmp_path_factory.mktemp("wide")
    models = [wide_model(f"wide{number}", folder, seed=number) for number in range(2)]
    with network() as cable:
        if cable is None:
            pytest.skip("this machine permits no network namespaces")
        run = tmp_path_factory.mktemp("net")
        with two_nodes(run, shm_dir, models, "published", cable) as nodes:
            for worker in [nodes.start(engine, role) for engine, role in ROLES.items()]:
                worker.wait_ready()
            with nodes.service(1) as service:
                until(lambda: all_ready(service), START_S)
                yield nodes, service, serve(service, models)


def serve(service: LLMService, models: list[ModelSpec]) -> Tokens:
    requests = [
        ask(spec, prompt, NEW_TOKENS, sampling=sampling)
        for spec in models
        for prompt in PROMPTS
        for sampling in (None, SAMPLED)
    ]
    return [tokens_of(output) for output in service.serve(requests)]


def all_ready(service: LLMService) -> bool:
    return [len(engine.estimates) for engine in service.runtime().engines] == [2, 2]


@contextmanager
def transfers_under_way(
    nodes: TwoNodes, service: LLMService, moment: random.Random
) -> Iterator[Future[Tokens]]:
    """All requests, at a random moment when KV is on the cable."""
    service.reset()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(serve, service, list(nodes.models))
        wanted = moment.randint(1, 3)

        def on_the_cable() -> bool:
            statistics = service.runtime().statistics
            return statistics.handed_off - statistics.fetched >= wanted

        until(on_the_cable, START_S)
        time.sleep(moment.uniform(0, 0.3))
        assert not running.done()
        yield running


Apart = tuple[TwoNodes, LLMService, Tokens]


def test_kv_crosses_the_cable(apart: Apart) -> None:
    nodes, service, expected = apart
    service.reset()
    assert serve(service, list(nodes.models)) == expected
    link = wire(service)
    assert (link.transfers, link.interruptions) == (len(expected), 0)
    assert 1e6 < link.bytes_per_s < 25e6
    statistics = service.runtime().statistics
    assert statistics.recomputed == 0


@pytest.mark.parametrize("cut_s", [1.0, 12.0])
def test_a_cut_is_survived_and_when_it_is_short_nothing_is_computed_again(
    apart: Apart, cut_s: float
) -> None:
    nodes, service, expected = apart
    cable = nodes.network
    assert isinstance(cable, Network)
    with transfers_under_way(nodes, service, random.Random(cut_s)) as running:
        cable.cut()
        try:
            time.sleep(cut_s)
        finally:
            cable.mend()
        assert running.result() == expected
    statistics = service.runtime().statistics
    assert statistics.handed_off == len(expected)
    if cut_s < 5:
        assert statistics.recomputed == 0
    else:
        assert statistics.fetch_interruptions > 0


@pytest.mark.parametrize("engine", list(ROLES))
def test_a_kill_in_the_middle_of_a_transfer_is_not_seen(apart: Apart, engine: str) -> None:
    nodes, service, expected = apart
    with transfers_under_way(nodes, service, random.Random(engine)) as running:
        nodes.workers[engine].kill()
        assert running.result() == expected
    nodes.start(engine, ROLES[engine]).wait_ready()
    until(lambda: all_ready(service), START_S)
    service.reset()
    assert serve(service, list(nodes.models)) == expected
    engines = service.runtime().engines
    assert not any(engine.held_sequences or engine.sequences for engine in engines)
