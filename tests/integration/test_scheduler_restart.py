"""The scheduler is killed and started again: workers keep what they have, streams go on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from aegaeon import LLMService, Request, SamplingParams, StepOutput
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import model_pb2
from tests.integration.daemons import START_S, Daemons, until
from tests.integration.models import expected_tokens
from tests.integration.workload import ask, tiny_node, tokens_of

PROMPT = [5, 9, 250, 17]
NEW_TOKENS = 800
CHECKED_TOKENS = 32
STREAMS = 4
SAMPLED = SamplingParams(temperature=0.8, top_k=4, seed=3, logprobs=1)
#: A clean stop, with a request under way that takes longer; on a machine that others keep busy.
STOP_S = 10.0
ENDLESS = 40_000


def weight_files(shm_dir: Path) -> dict[str, tuple[int, int]]:
    """Packed models and their identity: a file that is written again has another one."""
    files = shm_dir.glob("aegaeon-*/weights/*.weights")
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def read_all(service: LLMService, request: Request, into: list[StepOutput]) -> None:
    into.extend(service.stream(request))


@pytest.mark.parametrize(
    ("transport", "end"), [("unix", "kill"), ("tcp", "kill"), ("unix", "stop")]
)
def test_streams_go_on_with_identical_tokens(
    daemons: Daemons, tiny_models: list[ModelSpec], shm_dir: Path, transport: str, end: str
) -> None:
    spec = tiny_models[1]
    scheduler = daemons.scheduler(*["127.0.0.1:0"] * (transport == "tcp"))
    own = {"listen": "127.0.0.1:0"} if transport == "tcp" else {}
    worker = daemons.worker(scheduler.address, **own).wait_ready()
    with LLMService([tiny_node([spec])], address=scheduler.address) as service:
        requests = [ask(spec, PROMPT, NEW_TOKENS), ask(spec, PROMPT, NEW_TOKENS, sampling=SAMPLED)]
        undisturbed = [tokens_of(output) for output in service.serve(requests)]
        packed = weight_files(shm_dir)
        assert packed

        streams: list[list[StepOutput]] = [[] for _ in range(STREAMS)]
        readers = [
            threading.Thread(target=read_all, args=(service, requests[number % 2], into))
            for number, into in enumerate(streams)
        ]
        for reader in readers:
            reader.start()
        until(lambda: all(len(stream) > 20 for stream in streams), START_S)
        getattr(scheduler, end)()
        assert any(len(stream) < NEW_TOKENS for stream in streams)
        again = daemons.scheduler(scheduler.address)
        assert again.address == scheduler.address
        for reader in readers:
            reader.join(START_S)
        assert [tokens_of(stream) for stream in streams] == undisturbed * (STREAMS // 2)
        told = [[step.logprob is not None for step in stream] for stream in streams]
        assert told == [[False] * NEW_TOKENS, [True] * NEW_TOKENS] * (STREAMS // 2)

        snapshot = service.runtime()
        assert [info.pid for info in snapshot.workers] == [worker.pid]
        [model] = snapshot.models
        assert [replica.state for replica in model.replicas] == [model_pb2.REPLICA_STATE_READY]
        assert weight_files(shm_dir) == packed
        assert snapshot.active_requests == 0
    assert undisturbed[0][:CHECKED_TOKENS] == expected_tokens(spec, [PROMPT], CHECKED_TOKENS)[0]


def test_daemons_start_in_any_order_and_stop_under_load_at_once(
    daemons: Daemons, tiny_models: list[ModelSpec], run_folder: Path
) -> None:
    worker = daemons.worker(f"unix:{run_folder}/s").wait_ready()
    scheduler = daemons.scheduler(f"unix:{run_folder}/s")
    with LLMService([tiny_node(tiny_models[:1])], address=scheduler.address) as service:
        assert [info.pid for info in service.runtime().workers] == [worker.pid]
        assert len(tokens_of(service.serve([ask(tiny_models[0], PROMPT, 5)])[0])) == 5
        stream = service.stream(ask(tiny_models[0], PROMPT, ENDLESS))
        next(stream)
        for daemon in (worker, scheduler):
            start = time.monotonic()
            daemon.stop()
            assert time.monotonic() - start < STOP_S
