"""Log-probabilities of prompts through real daemons, whatever dies on the way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from aegaeon import LLMService, StepOutput
from aegaeon.errors import AegaeonError, InvalidRequestError
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.daemons import START_S, Daemons, until
from tests.integration.workload import ask, prompts, tiny_node, tokens_of
from tests.worker.engine.reference import assert_scored

#: Of a prompt that takes several steps.
LONG = [(position * 7919) % 500 + 5 for position in range(900)]


def scored(spec: ModelSpec, prompt: Sequence[int], output: list[StepOutput] | AegaeonError) -> int:
    """Check what came with the first token alone; how many alternatives it has."""
    assert not isinstance(output, AegaeonError), output
    first, *rest = output
    assert all(step.prompt_logprobs is None for step in rest)
    assert first.prompt_logprobs is not None
    begin, *told = first.prompt_logprobs
    assert begin is None
    entries = [(entry.logprob, entry.top_logprobs) for entry in told if entry is not None]
    count = len(entries[0][1]) if entries else 0
    assert_scored(entries, spec.path(), prompt, count)
    return count


def test_prompts_of_several_models_are_scored_beside_each_other(
    service: LLMService, tiny_models: list[ModelSpec]
) -> None:
    cases = [
        (spec, prompt, count)
        for spec in tiny_models
        for prompt, count in zip([*prompts(4), LONG], (0, 1, 20, 3, 2), strict=True)
    ]
    asked = [ask(spec, prompt, 3, prompt_logprobs=count) for spec, prompt, count in cases]
    plain = [ask(spec, prompt, 3) for spec, prompt, _ in cases]
    outputs = service.serve([*asked, *plain])
    for (spec, prompt, count), output in zip(cases, outputs, strict=False):
        assert scored(spec, prompt, output) == (count if len(prompt) > 1 else 0)
    made = [tokens_of(output) for output in outputs]
    assert made[: len(cases)] == made[len(cases) :]
    for output in outputs[len(cases) :]:
        assert not isinstance(output, AegaeonError)
        assert all(step.prompt_logprobs is None for step in output)


def test_a_stream_has_it_with_its_first_step(
    service: LLMService, tiny_models: list[ModelSpec]
) -> None:
    spec = tiny_models[1]
    steps = list(service.stream(ask(spec, LONG, 2, prompt_logprobs=1)))
    assert scored(spec, LONG, steps) == 1


def test_a_prefill_engine_tells_all_before_a_decode_engine_goes_on(
    service: LLMService, tiny_models: list[ModelSpec], shm_dir: Path
) -> None:
    cases = [(spec, prompt) for spec in tiny_models for prompt in [*prompts(3), LONG]]
    plain = service.serve([ask(spec, prompt, 20) for spec, prompt in cases])
    node = tiny_node(
        tiny_models,
        num_engines=0,
        num_prefill_engines=1,
        num_decode_engines=1,
        shm_dir=str(shm_dir),
    )
    with LLMService([node]) as dedicated:
        asked = [ask(spec, prompt, 20, prompt_logprobs=1) for spec, prompt in cases]
        outputs = dedicated.serve(asked)
        assert dedicated.runtime().statistics.handed_off >= len(cases)
    for (spec, prompt), output, expected in zip(cases, outputs, plain, strict=True):
        assert scored(spec, prompt, output) == (len(prompt) > 1)
        assert tokens_of(output) == tokens_of(expected)


@pytest.mark.parametrize("count", [21, -1, 2.5])
def test_wrong_numbers_are_refused_by_name(
    service: LLMService, tiny_models: list[ModelSpec], count: object
) -> None:
    [outcome] = service.serve([ask(tiny_models[1], [5, 6], 2, prompt_logprobs=count)])
    assert isinstance(outcome, InvalidRequestError)
    assert "prompt_logprobs" in str(outcome)
    assert str(count) in str(outcome)


@pytest.mark.parametrize("dies", ["worker", "scheduler"])
def test_every_token_is_told_once_although_a_daemon_dies(
    daemons: Daemons, tiny_models: list[ModelSpec], dies: str
) -> None:
    spec = tiny_models[0]
    prompt = LONG * 2
    scheduler = daemons.scheduler()
    worker = daemons.worker(scheduler.address).wait_ready()
    with LLMService([tiny_node([spec])], address=scheduler.address) as service:
        steps: list[StepOutput] = []
        # It has the request, and has done nothing of it yet.
        os.kill(worker.pid, signal.SIGSTOP)
        stream = service.stream(ask(spec, prompt, 4, prompt_logprobs=2))
        reader = threading.Thread(target=lambda: steps.extend(stream))
        reader.start()
        until(lambda: service.runtime().active_requests == 1)
        if dies == "worker":
            worker.kill()
            daemons.worker(scheduler.address)
        else:
            scheduler.kill()
            daemons.scheduler(scheduler.address)
            os.kill(worker.pid, signal.SIGCONT)
        reader.join(2 * START_S)
        assert scored(spec, prompt, steps) == 2
        assert len(steps) == 4


def test_what_a_lost_worker_has_told_is_not_told_again(
    daemons: Daemons, tiny_models: list[ModelSpec]
) -> None:
    spec, prompt = tiny_models[0], LONG * 2
    scheduler = daemons.scheduler()
    worker = daemons.worker(scheduler.address).wait_ready()
    with LLMService([tiny_node([spec])], address=scheduler.address):
        request = inference_pb2.GenerateRequest(
            model=spec.name,
            prompt_token_ids=prompt,
            stop=inference_pb2.StopConditions(max_new_tokens=1),
            prompt_logprobs=1,
        )
        told: list[tuple[float, dict[int, float]]] = []
        tokens: list[int] = []
        with grpc.insecure_channel(scheduler.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            for message in stub.Generate(request, timeout=2 * START_S):
                if not told:
                    # In the middle of the prompt, unless it was very fast.
                    worker.kill()
                    daemons.worker(scheduler.address)
                pieces = message.prompt_log_probabilities
                if pieces.starts:
                    assert pieces.starts[0] == 1 + len(told)
                tops = zip(pieces.top_token_ids, pieces.top_logprobs, strict=True)
                told += [(own, dict([top])) for own, top in zip(pieces.logprobs, tops, strict=True)]
                tokens += message.token_ids
        assert len(tokens) == 1
        assert_scored(told, spec.path(), prompt, 1)
