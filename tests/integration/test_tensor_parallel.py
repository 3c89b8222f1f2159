"""Engines of several workers: their tokens are those of one, whatever happens to a rank."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from aegaeon import LLMService, SamplingParams, StepOutput
from aegaeon.errors import AegaeonError, ModelUnsupportedError, RequestTimeoutError
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import cluster_pb2
from tests.integration.daemons import Daemon, Daemons, running_daemons, until
from tests.integration.models import expected_tokens
from tests.integration.workload import ask, prompts, tiny_node, tokens_of

NEW_TOKENS = 24
PROMPTS = prompts(4)
SAMPLED = SamplingParams(temperature=0.8, top_k=4, seed=77)
REAL_PROMPTS = [[504, 3575, 282, 4649, 314], [18, 2683, 905]]
REAL_TOKENS = 4
#: A silent rank is given up after this time. Where other tests keep the machine busy, one that is
#: well may be silent for some seconds.
RANK_TIMEOUT_S = 8.0

Outputs = list[list[StepOutput] | AegaeonError]


class Group:
    """The daemons of one engine, and a client of theirs."""

    def __init__(self, daemons: Daemons, models: list[ModelSpec], size: int) -> None:
        self.size = size
        self.models = models
        self._daemons = daemons
        self._scheduler = daemons.scheduler().address
        self.ranks = [self.start_rank(rank) for rank in range(size)]
        node = tiny_node(models, tensor_parallel_size=size)
        self.service = LLMService([node], address=self._scheduler)

    def start_rank(self, rank: int) -> Daemon:
        return self._daemons.worker(
            self._scheduler,
            instance=f"of-{self.size}",
            worker_index=rank,
            tensor_parallel_size=self.size,
            rank_timeout_s=RANK_TIMEOUT_S,
        )

    def engine(self) -> cluster_pb2.EngineInfo:
        (engine,) = self.service.runtime().engines
        return engine

    def serve(self, new_tokens: int = NEW_TOKENS) -> list[list[int]]:
        """Both models, several prompts each, one of them sampled, all at once."""
        return [tokens_of(output) for output in self.service.serve(self.requests(new_tokens))]

    def requests(self, new_tokens: int) -> list:  # type: ignore[type-arg]
        return [
            ask(spec, prompt, new_tokens, sampling=SAMPLED if number == 1 else None)
            for spec in self.models
            for number, prompt in enumerate(PROMPTS)
        ]

    @contextmanager
    def under_way(self, new_tokens: int) -> Iterator[Future[Outputs]]:
        """The same, while tokens come."""
        with ThreadPoolExecutor(1) as thread:
            self.service.reset()
            running = thread.submit(self.service.serve, self.requests(new_tokens))
            until(lambda: self.engine().tokens > 10)
            assert not running.done()
            yield running


@pytest.fixture(scope="module")
def models(tiny_models: list[ModelSpec]) -> list[ModelSpec]:
    """One native, one generic, of which the device holds one; both have two KV heads."""
    return [tiny_models[0], tiny_models[2]]


@pytest.fixture(scope="module")
def pair(
    models: list[ModelSpec], tmp_path_factory: pytest.TempPathFactory, shm_dir: Path
) -> Iterator[Group]:
    with running_daemons(tmp_path_factory.mktemp("tp"), shm_dir) as daemons:
        group = Group(daemons, models, 2)
        with group.service:
            yield group


@pytest.fixture(scope="module")
def expected(pair: Group, models: list[ModelSpec]) -> list[list[int]]:
    """Undisturbed tokens; the greedy ones are those of `transformers`."""
    undisturbed = pair.serve()
    wanted = [row for spec in models for row in expected_tokens(spec, PROMPTS, NEW_TOKENS)]
    equal = [row == other for row, other in zip(undisturbed, wanted, strict=True)]
    assert equal == [number != 1 for _ in models for number in range(len(PROMPTS))]
    return undisturbed


def test_two_ranks_agree_with_one_worker_across_switches(
    pair: Group, expected: list[list[int]]
) -> None:
    assert pair.serve() == expected
    engine = pair.engine()
    assert (engine.switches >= 2, list(engine.worker_indexes)) == (True, [0, 1])
    workers = pair.service.runtime().workers
    assert [(w.rank, w.connected, w.pid) for w in workers] == [
        (rank, True, daemon.pid) for rank, daemon in enumerate(pair.ranks)
    ]
    alone = tokens_of(pair.service.serve([ask(pair.models[1], PROMPTS[3], NEW_TOKENS)])[0])
    assert alone == expected[-1]


def test_idle_ranks_use_no_processor_time(pair: Group, expected: list[list[int]]) -> None:
    processes = [psutil.Process(daemon.pid) for daemon in pair.ranks]
    until(lambda: all(process.cpu_percent(0.5) < 3 for process in processes))


@pytest.mark.parametrize("rank", [1, 0])
def test_a_killed_rank_is_not_seen_once_it_is_back(
    pair: Group, expected: list[list[int]], rank: int
) -> None:
    with pair.under_way(NEW_TOKENS) as running:
        pair.ranks[rank].kill()
        until(lambda: list(pair.engine().missing_worker_indexes) == [rank])
        assert not pair.engine().ready
        pair.ranks[rank] = pair.start_rank(rank)
        assert [tokens_of(output) for output in running.result()] == expected
    assert pair.serve() == expected


def test_a_hung_rank_is_given_up_and_replaced(pair: Group, expected: list[list[int]]) -> None:
    """Rank 0 ends the process that does not answer, so that another one can have its place."""
    hung = pair.ranks[1]
    with pair.under_way(NEW_TOKENS) as running:
        hung.process.send_signal(signal.SIGSTOP)
        assert hung.process.wait(5 * RANK_TIMEOUT_S) == -signal.SIGKILL
        pair.ranks[1] = pair.start_rank(1)
        assert [tokens_of(output) for output in running.result()] == expected


def test_a_missing_rank_is_named(daemons: Daemons, models: list[ModelSpec], shm_dir: Path) -> None:
    scheduler = daemons.scheduler().address
    for rank in (1, 2):
        daemons.worker(
            scheduler, instance="incomplete", worker_index=rank, tensor_parallel_size=3
        ).wait_ready()
    node = tiny_node([], tensor_parallel_size=3)
    with pytest.raises(RequestTimeoutError, match=r"node_0/0 \(rank 0 of 3 of engine node_0/0\)"):
        LLMService([node], address=scheduler, startup_timeout_s=3)


def test_a_model_that_does_not_divide_is_refused_with_the_numbers(
    pair: Group, demo_model: Path
) -> None:
    with pytest.raises(
        ModelUnsupportedError, match=r"9 query heads and 3 KV heads .* may be 1, 3, 9"
    ):
        asyncio.run(pair.service.deploy_model_replicas(ModelSpec("real", str(demo_model))))


def test_three_ranks_of_a_real_model_agree_with_transformers(
    demo_model: Path, run_folder: Path, shm_dir: Path
) -> None:
    spec = ModelSpec("real", str(demo_model))
    sizes = {"model_cache_size": 1 << 30, "device_memory_bytes": 512 << 20}
    node = tiny_node([spec], tensor_parallel_size=3, shm_dir=str(shm_dir), **sizes)
    with LLMService([node]) as service:
        output = service.serve([ask(spec, prompt, REAL_TOKENS) for prompt in REAL_PROMPTS])
    assert [tokens_of(row) for row in output] == expected_tokens(spec, REAL_PROMPTS, REAL_TOKENS)
