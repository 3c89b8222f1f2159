"""Prefill with one number of ranks, decoding on another node with another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from aegaeon import LLMService
from aegaeon.model_spec import ModelSpec
from aegaeon.sampling import SamplingParams
from tests.integration.daemons import START_S, until
from tests.integration.models import expected_tokens, tiny_model
from tests.integration.two_nodes import TwoNodes, two_nodes, wire
from tests.integration.workload import ask, prompts, tokens_of

NEW_TOKENS = 16
PROMPTS = prompts(4)
SAMPLED = SamplingParams(temperature=0.8, seed=11)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[ModelSpec]:
    """A native one, and a generic one."""
    folder = tmp_path_factory.mktemp("sizes")
    return [tiny_model("llama", "llama", folder), tiny_model("gemma2", "gemma2", folder, seed=2)]


def serve(service: LLMService, models: list[ModelSpec]) -> list[list[int]]:
    requests = [ask(spec, prompt, NEW_TOKENS) for spec in models for prompt in PROMPTS]
    requests += [ask(spec, PROMPTS[3], NEW_TOKENS, sampling=SAMPLED) for spec in models]
    return [tokens_of(output) for output in service.serve(requests)]


@pytest.mark.parametrize(("prefill", "decode"), [(2, 1), (1, 2)])
def test_kv_is_put_in_order_and_tokens_are_the_same(
    models: list[ModelSpec], run_folder: Path, shm_dir: Path, prefill: int, decode: int
) -> None:
    with two_nodes(run_folder, shm_dir, models) as nodes:
        start_group(nodes, "a", "prefill", prefill)
        start_group(nodes, "b", "decode", decode)
        with nodes.service(1, ranks=(prefill, decode)) as service:
            until(lambda: [len(e.estimates) for e in service.runtime().engines] == [2, 2], START_S)
            service.reset()
            served = serve(service, models)
            greedy = [row for spec in models for row in expected_tokens(spec, PROMPTS, NEW_TOKENS)]
            assert served[: len(greedy)] == greedy
            statistics = service.runtime().statistics
            assert statistics.handed_off == statistics.fetched == len(served)
            assert statistics.recomputed == 0
            assert wire(service).interruptions == 0
            assert {e.engine_id: e.tokens for e in service.runtime().engines} == {
                "a/0": len(served),
                "b/0": len(served) * (NEW_TOKENS - 1),
            }


def start_group(nodes: TwoNodes, node: str, role: str, ranks: int) -> None:
    started = [
        nodes.start(f"{node}/{rank}", role, tensor_parallel_size=ranks) for rank in range(ranks)
    ]
    for worker in started:
        worker.wait_ready()
