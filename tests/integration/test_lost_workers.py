"""Dead and hung workers are found in time, requests move, and health tells the truth."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aegaeon import LLMService, Request, SamplingParams, StepOutput
from aegaeon.model_spec import ModelSpec
from tests.integration.daemons import START_S, Daemon, Daemons, until
from tests.integration.workload import ask, tiny_node, tokens_of

PROMPT = [5, 9, 250, 17]
NEW_TOKENS = 900
SAMPLED = SamplingParams(temperature=0.8, seed=5)
#: From the fault until the scheduler has noticed, and from then until the next token.
DEAD_S = 1.0
HUNG_S = 5.0
RESUME_S = 2.0
ATTEMPTS = 3


def serving(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service="aegaeon.v1.InferenceService")
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def pids(service: LLMService) -> list[int]:
    return [worker.pid for worker in service.runtime().workers if worker.connected]


class Reader(threading.Thread):
    """Reads a stream; knows when each token came."""

    def __init__(self, service: LLMService, request: Request) -> None:
        super().__init__(daemon=True)
        self.steps: list[StepOutput] = []
        self.times: list[float] = []
        self._stream = service.stream(request)

    def run(self) -> None:
        for step in self._stream:
            self.times.append(time.monotonic())
            self.steps.append(step)


@dataclass
class Pair:
    """Two workers with the default settings, one of which is lost again and again."""

    daemons: Daemons
    scheduler: Daemon
    service: LLMService
    workers: list[Daemon]
    requests: list[Request]
    undisturbed: list[list[int]]
    lost: int = 0

    def lose_one(self, number: signal.Signals) -> tuple[float, float]:
        """Time until the scheduler has noticed, and the longest pause of any of its streams that
        comes on top, in seconds; tokens are those of an undisturbed run."""
        readers = [Reader(self.service, request) for request in self.requests * 2]
        for reader in readers:
            reader.start()
        until(lambda: all(len(reader.steps) > 20 for reader in readers), START_S)
        engines = {engine.worker_indexes[0]: engine for engine in self.service.runtime().engines}
        self.lost = max(engines, key=lambda index: engines[index].sequences)
        victim = self.workers[self.lost]
        fault = time.monotonic()
        os.kill(victim.pid, number)
        until(lambda: victim.pid not in pids(self.service), START_S)
        noticed = time.monotonic() - fault
        for reader in readers:
            reader.join(START_S)
        assert [tokens_of(reader.steps) for reader in readers] == self.undisturbed * 2
        longest = max(max(gaps(reader.times, fault)) for reader in readers)
        return noticed, longest - noticed

    def restore(self, number: signal.Signals) -> None:
        """Both are there again and of use; one that was hung comes back late."""
        index = self.lost
        if number is signal.SIGSTOP:
            os.kill(self.workers[index].pid, signal.SIGCONT)
        else:
            self.workers[index].process.wait(START_S)
            self.workers[index] = self.daemons.worker(self.scheduler.address, worker_index=index)
        pid = self.workers[index].pid
        until(lambda: pid in pids(self.service), START_S)
        outputs = self.service.serve(self.requests)
        assert [tokens_of(output) for output in outputs] == self.undisturbed


@pytest.mark.parametrize(
    ("number", "noticed_s"),
    [(signal.SIGKILL, DEAD_S), (signal.SIGTERM, DEAD_S), (signal.SIGSTOP, HUNG_S)],
)
def test_requests_move_to_another_worker_in_time_with_the_same_tokens(
    daemons: Daemons, tiny_models: list[ModelSpec], number: signal.Signals, noticed_s: float
) -> None:
    spec = tiny_models[1]
    scheduler = daemons.scheduler()
    workers = [daemons.worker(scheduler.address, worker_index=index) for index in range(2)]
    for worker in workers:
        worker.wait_ready()
    with LLMService([tiny_node([spec], num_engines=2)], address=scheduler.address) as service:
        requests = [ask(spec, PROMPT, NEW_TOKENS), ask(spec, PROMPT, NEW_TOKENS, sampling=SAMPLED)]
        undisturbed = [tokens_of(output) for output in service.serve(requests)]
        pair = Pair(daemons, scheduler, service, workers, requests, undisturbed)
        # Other programs may take the processors for seconds: once in time shows what daemons do.
        measured: list[tuple[float, float]] = []
        in_time = False
        while not in_time:
            assert len(measured) < ATTEMPTS, measured
            noticed, on_top = pair.lose_one(number)
            measured.append((noticed, on_top))
            in_time = noticed < noticed_s and on_top < RESUME_S
            if not in_time or number is signal.SIGSTOP:
                pair.restore(number)
        assert service.runtime().active_requests == 0


def gaps(times: list[float], start: float) -> list[float]:
    """Between the tokens that came after ``start``, and before the first of them."""
    late = [start, *[moment for moment in times if moment > start]]
    return [after - before for before, after in itertools.pairwise(late)] or [0.0]


def test_health_tells_whether_there_are_tokens(
    daemons: Daemons, tiny_models: list[ModelSpec]
) -> None:
    scheduler = daemons.scheduler(lease_ttl_ms=500)
    assert not serving(scheduler.address)
    worker = daemons.worker(scheduler.address).wait_ready()
    until(lambda: serving(scheduler.address))
    os.kill(worker.pid, signal.SIGSTOP)
    until(lambda: not serving(scheduler.address), START_S)
    os.kill(worker.pid, signal.SIGCONT)
    until(lambda: serving(scheduler.address))
    worker.kill()
    until(lambda: not serving(scheduler.address), START_S)


def test_everything_dies_and_the_deployed_models_are_back(
    daemons: Daemons, tiny_models: list[ModelSpec], run_folder: Path
) -> None:
    spec = tiny_models[1]
    state = {"state_file": run_folder / "state.json"}
    scheduler = daemons.scheduler(**state)
    worker = daemons.worker(scheduler.address).wait_ready()
    with LLMService([tiny_node([spec])], address=scheduler.address) as service:
        undisturbed = tokens_of(service.serve([ask(spec, PROMPT, NEW_TOKENS)])[0])
        reader = Reader(service, ask(spec, PROMPT, NEW_TOKENS))
        reader.start()
        until(lambda: len(reader.steps) > 20)
        until(lambda: state["state_file"].exists())
        for daemon in (scheduler, worker):
            daemon.kill()
        again = daemons.scheduler(scheduler.address, **state)
        late = Reader(service, ask(spec, PROMPT, NEW_TOKENS))  # before any worker is there
        late.start()
        daemons.worker(again.address).wait_ready()
        for one in (reader, late):
            one.join(START_S)
            assert tokens_of(one.steps) == undisturbed


def test_a_worker_without_a_scheduler_ends_after_its_time(
    daemons: Daemons, tiny_models: list[ModelSpec], shm_dir: Path
) -> None:
    others = set(shm_dir.iterdir())  # of daemons that several tests share
    scheduler = daemons.scheduler()
    worker: Daemon = daemons.worker(scheduler.address, scheduler_timeout_s=1).wait_ready()
    with LLMService([tiny_node(tiny_models[:1])], address=scheduler.address):
        pass
    scheduler.kill()
    time.sleep(0.5)
    assert worker.process.poll() is None
    said = worker.wait_failed()
    assert "has not answered for 1 s" in said
    assert "Traceback" not in said
    assert set(shm_dir.iterdir()) <= others


def test_a_worker_whose_engine_is_stuck_ends_and_its_requests_go_on(
    daemons: Daemons, tiny_models: list[ModelSpec]
) -> None:
    """Its loop answers all the time, and its lease is renewed."""
    spec = tiny_models[1]
    scheduler = daemons.scheduler()
    stuck = daemons.worker(
        scheduler.address, module="tests.integration.stuck_worker", engine_timeout_s=2
    ).wait_ready()
    with LLMService([tiny_node([spec])], address=scheduler.address) as service:
        reader = Reader(service, ask(spec, PROMPT, NEW_TOKENS))
        reader.start()
        said = stuck.wait_failed()
        assert "stuck in one step for 2 s" in said
        assert "Traceback" not in said
        daemons.worker(scheduler.address).wait_ready()
        reader.join(START_S)
        assert tokens_of(reader.steps) == tokens_of(
            service.serve([ask(spec, PROMPT, NEW_TOKENS)])[0]
        )
