"""Two workers on two nodes: conversations go on where their KV is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon import LLMService, StepOutput
from aegaeon.config.schema import RoutingPolicyName
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import cluster_pb2, model_pb2
from tests.integration.daemons import START_S, Daemon, Daemons, running_daemons, until
from tests.integration.models import expected_tokens
from tests.integration.workload import ask, tiny_node, tokens_of

NODES = ("a", "b")
ANSWER_TOKENS = 20
#: An odd number: with the next turns in the same order, each would go to the other node in turn.
CONVERSATIONS = 5


@pytest.fixture(scope="module")
def model(tiny_models: list[ModelSpec]) -> ModelSpec:
    return tiny_models[0]


class Fleet:
    """A scheduler, and a worker per node."""

    def __init__(self, daemons: Daemons, shm_dirs: dict[str, Path]) -> None:
        self.scheduler = daemons.scheduler()
        self._daemons, self._shm_dirs = daemons, shm_dirs
        self.workers = {node: self.start(node) for node in NODES}
        for worker in self.workers.values():
            worker.wait_ready()

    def start(self, node: str) -> Daemon:
        return self._daemons.worker(
            self.scheduler.address, node_id=node, shm_dir=self._shm_dirs[node]
        )


@pytest.fixture(scope="module")
def fleet(shm_dir: Path) -> Iterator[Fleet]:
    with (
        tempfile.TemporaryDirectory(dir=shm_dir) as a,
        tempfile.TemporaryDirectory(dir=shm_dir) as b,
        tempfile.TemporaryDirectory(prefix="run-") as folder,
        running_daemons(Path(folder), shm_dir) as daemons,
    ):
        yield Fleet(daemons, {"a": Path(a), "b": Path(b)})


def attach(fleet: Fleet, model: ModelSpec, policy: RoutingPolicyName | None = None) -> LLMService:
    nodes = [
        tiny_node(
            [model],
            node_id=node,
            cpu_num_slabs=None,
            cpu_slab_size_bytes=None,
            model_cache_size=None,
            device_memory_bytes=None,
        )
        for node in NODES
    ]
    return LLMService(nodes, address=fleet.scheduler.address, request_routing_policy=policy)


@pytest.fixture
def service(fleet: Fleet, model: ModelSpec) -> Iterator[LLMService]:
    with attach(fleet, model) as service:
        until(lambda: len(replicas(service, model)) == len(NODES), START_S)
        service.reset()
        yield service


def ready_engines(service: LLMService) -> int:
    return sum(engine.ready for engine in service.runtime().engines)


def replicas(service: LLMService, model: ModelSpec) -> list[str]:
    """Nodes where the model is READY."""
    [info] = [info for info in service.runtime().models if info.spec.name == model.name]
    return [r.node_id for r in info.replicas if r.state == model_pb2.REPLICA_STATE_READY]


def prompt_of(number: int, length: int = 100) -> list[int]:
    return [(number * 37 + position * 11) % 490 + 5 for position in range(length)]


def answer(service: LLMService, model: ModelSpec, prompt: list[int]) -> list[StepOutput]:
    """One request alone."""
    [output] = service.serve([ask(model, prompt, ANSWER_TOKENS)])
    assert isinstance(output, list), output
    until(lambda: service.runtime().active_requests == 0)
    return output


def converse(service: LLMService, model: ModelSpec, seed: int) -> list[list[int]]:
    """Two turns of some conversations; what was found of the second turns' prompts, and of a third
    one's."""
    said = [prompt_of(seed + number) for number in range(CONVERSATIONS)]
    found = []
    for turn in range(3):
        found.append([])
        for number, prompt in enumerate(said):
            steps = answer(service, model, prompt)
            found[-1].append(steps[-1].cached_tokens)
            more = prompt_of(seed + 50 * (turn + 1) + number, 30)
            said[number] = [*prompt, *tokens_of(steps), *more]
    assert found[0] == [0] * CONVERSATIONS
    return found[1:]


def test_every_turn_finds_the_one_before(service: LLMService, model: ModelSpec) -> None:
    assert converse(service, model, 0) == [[112] * CONVERSATIONS, [160] * CONVERSATIONS]
    runtime = service.runtime()
    statistics = runtime.statistics
    assert runtime.routing_policy == cluster_pb2.ROUTING_POLICY_PREFIX_AWARE
    assert statistics.expected_cached_tokens == statistics.cached_tokens == 272 * CONVERSATIONS
    assert statistics.prefix_followed > 0
    assert sum(e.prefix_followed for e in runtime.engines) == statistics.prefix_followed
    assert runtime.prefix_index_blocks > 0
    assert sorted(statistics.routed_by_node) == list(NODES)


def test_by_requests_alone_they_miss_it(fleet: Fleet, model: ModelSpec) -> None:
    """So that the test above tests something."""
    with attach(fleet, model, "least-outstanding") as service:
        service.reset()
        second, _ = converse(service, model, 20)
        assert second == [0] * CONVERSATIONS
        assert service.runtime().statistics.expected_cached_tokens == 0


def test_a_conversation_goes_on_elsewhere_and_stays_there_when_its_worker_is_back(
    service: LLMService, fleet: Fleet, model: ModelSpec
) -> None:
    prompt = prompt_of(40)
    answer(service, model, prompt)
    [home] = service.runtime().statistics.routed_by_node
    fleet.workers[home].kill()
    until(lambda: ready_engines(service) == 1, START_S)
    steps = answer(service, model, prompt)
    assert steps[-1].cached_tokens == 0
    assert tokens_of(steps) == expected_tokens(model, [prompt], ANSWER_TOKENS)[0]
    fleet.workers[home] = fleet.start(home).wait_ready()
    until(lambda: len(replicas(service, model)) == len(NODES), START_S)
    found = [answer(service, model, prompt)[-1].cached_tokens for _ in range(4)]
    assert found == [96] * 4
    assert service.runtime().statistics.prefix_followed > 0
