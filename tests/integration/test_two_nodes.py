"""Prefill on one node, decoding on another: the KV goes over the wire, and nobody sees it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aegaeon import LLMService, Request
from aegaeon.model_spec import ModelSpec
from aegaeon.sampling import SamplingParams
from tests.integration.daemons import START_S, until
from tests.integration.models import expected_tokens
from tests.integration.two_nodes import SIZES, TwoNodes, two_nodes, wide_model, wire
from tests.integration.workload import ask, prompts, tiny_node, tokens_of

NEW_TOKENS = 24
CHECKED_TOKENS = 8
#: Up to 13 MiB of KV each.
PROMPTS = [
    (prompt * 100)[:length] for prompt, length in zip(prompts(4)[1:], (400, 70, 250), strict=True)
]
SAMPLED = SamplingParams(temperature=0.8, seed=11)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[ModelSpec]:
    folder = tmp_path_factory.mktemp("wide")
    return [wide_model(f"wide{number}", folder, seed=number) for number in range(3)]


@pytest.fixture(scope="module")
def expected(models: list[ModelSpec], shm_dir: Path) -> list[list[int]]:
    """Tokens of an undisturbed simple engine, checked against `transformers`."""
    sizes = {
        "cpu_num_slabs": SIZES["cpu_num_slabs"],
        "cpu_slab_size_bytes": SIZES["cpu_slab_bytes"],
        "device_memory_bytes": SIZES["device_memory_bytes"],
    }
    with LLMService([tiny_node(models, shm_dir=str(shm_dir), **sizes)]) as service:
        tokens = [tokens_of(output) for output in service.serve(requests(models))]
    checked = expected_tokens(models[0], PROMPTS, CHECKED_TOKENS)
    assert [row[:CHECKED_TOKENS] for row in tokens[: len(PROMPTS)]] == checked
    return tokens


@pytest.fixture(scope="module")
def nodes(
    models: list[ModelSpec], tmp_path_factory: pytest.TempPathFactory, shm_dir: Path
) -> Iterator[TwoNodes]:
    """One prefill engine, and one decode engine elsewhere."""
    with two_nodes(tmp_path_factory.mktemp("nodes"), shm_dir, models) as nodes:
        for worker in (nodes.start("a/0", "prefill"), nodes.start("b/0", "decode")):
            worker.wait_ready()
        yield nodes


def requests(models: list[ModelSpec]) -> list[Request]:
    """Greedy ones, and one per model that draws its tokens by a seed."""
    greedy = [ask(spec, prompt, NEW_TOKENS) for spec in models for prompt in PROMPTS]
    return greedy + [ask(spec, PROMPTS[1], NEW_TOKENS, sampling=SAMPLED) for spec in models]


def serve(service: LLMService, models: list[ModelSpec]) -> list[list[int]]:
    return [tokens_of(output) for output in service.serve(requests(models))]


def test_kv_goes_from_node_to_node_and_tokens_are_the_same(
    nodes: TwoNodes, models: list[ModelSpec], expected: list[list[int]]
) -> None:
    with nodes.service(1) as service:
        service.reset()
        assert serve(service, models) == expected
        runtime = service.runtime()
        statistics, link = runtime.statistics, wire(service)
        assert statistics.handed_off == statistics.fetched == len(expected)
        assert (statistics.recomputed, statistics.fetch_interruptions) == (0, 0)
        assert (link.source_node_id, link.target_node_id) == ("a", "b")
        assert link.transfers == len(expected)
        assert link.bytes == statistics.fetched_bytes > 32_000 * sum(map(len, PROMPTS))
        assert link.time_ns == statistics.fetch_time_ns
        assert link.bytes_per_s > 0
        assert {engine.engine_id: engine.tokens for engine in runtime.engines} == {
            "a/0": len(expected),
            "b/0": len(expected) * (NEW_TOKENS - 1),
        }
        assert not any(engine.held_sequences for engine in runtime.engines)


@pytest.mark.parametrize(("engine", "role"), [("a/0", "prefill"), ("b/0", "decode")])
def test_a_kill_in_the_middle_of_transfers_is_not_seen(
    nodes: TwoNodes,
    models: list[ModelSpec],
    expected: list[list[int]],
    engine: str,
    role: str,
) -> None:
    moments = random.Random(engine)
    with nodes.service(1) as service, ThreadPoolExecutor(1) as thread:
        until(lambda: ready(service, len(models)) == 2, START_S)
        service.reset()
        running = thread.submit(serve, service, models)
        until(lambda: service.runtime().statistics.handed_off >= 2, START_S)
        time.sleep(moments.uniform(0, 0.2))
        assert not running.done()
        nodes.workers[engine].kill()
        assert running.result() == expected
        nodes.start(engine, role).wait_ready()
        until(lambda: ready(service, len(models)) == 2, START_S)
        service.reset()
        assert serve(service, models) == expected
        assert service.runtime().statistics.fetched == len(expected)


def ready(service: LLMService, models: int) -> int:
    """Engines that have so many models."""
    return sum(len(engine.estimates) == models for engine in service.runtime().engines)


def test_an_idle_decode_engine_steals_a_batch_and_fetches_its_kv_itself(
    models: list[ModelSpec], expected: list[list[int]], run_folder: Path, shm_dir: Path
) -> None:
    with (
        two_nodes(run_folder, shm_dir, models, "published") as nodes,
        ThreadPoolExecutor(1) as thread,
    ):
        nodes.start("a/0", "prefill")
        victim = nodes.start("b/0", "decode").wait_ready()
        with nodes.service(1, stealing=True) as service:
            service.reset()
            # It gets all batches and runs none, until there is a thief.
            victim.process.send_signal(signal.SIGSTOP)
            try:
                running = thread.submit(serve, service, models)
                until(lambda: service.runtime().statistics.handed_off == len(expected), START_S)
                nodes.start("b/1", "decode").wait_ready()
                until(lambda: service.runtime().statistics.stolen_batches, START_S)
            finally:
                victim.process.send_signal(signal.SIGCONT)
            assert running.result() == expected
            statistics = service.runtime().statistics
            assert statistics.stolen_sequences >= 2
            assert statistics.recomputed == 0
            assert statistics.fetched >= len(expected)
            engines = service.runtime().engines
            assert [e.engine_id for e in engines if e.tokens] == ["a/0", "b/0", "b/1"]
