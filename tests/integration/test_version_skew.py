"""Releases that are one step apart serve together: in every pair, while one replaces the other."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from aegaeon import LLMService, Request, SamplingParams, StepOutput
from aegaeon.capability import Capability
from aegaeon.constraint import Constraint
from aegaeon.errors import ErrorReason, PreconditionError
from aegaeon.model_spec import ModelSpec
from aegaeon.step_output import PromptLogprob
from tests.integration.daemons import START_S, Daemons, until
from tests.integration.models import expected_tokens
from tests.integration.older_release import OlderRelease
from tests.integration.workload import ask, tiny_node, tokens_of

PROMPT = [5, 9, 250, 17]
NEW_TOKENS = 400
CHECKED_TOKENS = 32


@pytest.fixture
def older(tmp_path: Path) -> OlderRelease:
    return OlderRelease(tmp_path)


@pytest.fixture(scope="module")
def expected(tiny_models: list[ModelSpec]) -> dict[str, list[int]]:
    """The reference's tokens, by model."""
    return {
        spec.name: expected_tokens(spec, [PROMPT], CHECKED_TOKENS)[0] for spec in tiny_models[1:3]
    }


class Stream(threading.Thread):
    """Reads one request."""

    def __init__(self, service: LLMService, spec: ModelSpec) -> None:
        super().__init__(daemon=True)
        self.steps: list[StepOutput] = []
        self._stream = service.stream(ask(spec, PROMPT, NEW_TOKENS))

    def run(self) -> None:
        for step in self._stream:
            self.steps.append(step)


def check_answers(service: LLMService, older: OlderRelease, expected: dict[str, list[int]]) -> None:
    """Clients of both releases get the reference's tokens, for requests that come together, too."""
    names, tokens = list(expected), list(expected.values())
    requests = [ask(name, PROMPT, CHECKED_TOKENS) for name in names * 2]
    assert [tokens_of(output) for output in service.serve(requests)] == tokens * 2
    assert older.serve(service.address, names, PROMPT, CHECKED_TOKENS) == tokens
    assert service.runtime().active_requests == 0


def test_schedulers_of_both_releases_take_each_other_s_place(
    daemons: Daemons,
    tiny_models: list[ModelSpec],
    older: OlderRelease,
    expected: dict[str, list[int]],
) -> None:
    """Amid streams, with a worker of this release: an upgrade that begins with it, and one that is
    taken back."""
    specs = tiny_models[1:3]
    scheduler = daemons.scheduler(prefix=older.prefix)
    worker = daemons.worker(scheduler.address).wait_ready()
    with LLMService([tiny_node(specs)], address=scheduler.address) as service:
        check_answers(service, older, expected)
        requests = [ask(spec, PROMPT, NEW_TOKENS) for spec in specs]
        undisturbed = [tokens_of(output) for output in service.serve(requests)]
        for prefix in ([], older.prefix):
            streams = [Stream(service, spec) for spec in specs]
            for stream in streams:
                stream.start()
            until(lambda streams=streams: all(len(s.steps) > 20 for s in streams), START_S)
            scheduler.kill()
            scheduler = daemons.scheduler(scheduler.address, prefix=prefix)
            for stream in streams:
                stream.join(START_S)
            assert [tokens_of(stream.steps) for stream in streams] == undisturbed
            check_answers(service, older, expected)
            assert [info.pid for info in service.runtime().workers] == [worker.pid]


@pytest.mark.parametrize("older_role", ["prefill", "decode"])
def test_workers_of_both_releases_serve_one_model_on_one_node(
    daemons: Daemons,
    tiny_models: list[ModelSpec],
    older: OlderRelease,
    expected: dict[str, list[int]],
    older_role: str,
) -> None:
    """They share slabs and weight cache, and every request needs both: one computes its prompt, and
    the other goes on."""
    specs = tiny_models[1:3]
    scheduler = daemons.scheduler()
    workers = [
        daemons.worker(
            scheduler.address,
            role=role,
            worker_index=index,
            prefix=older.prefix if role == older_role else (),
        )
        for index, role in enumerate(("prefill", "decode"))
    ]
    for worker in workers:
        worker.wait_ready()
    node = tiny_node(specs, num_engines=0, num_prefill_engines=1, num_decode_engines=1)
    with LLMService([node], address=scheduler.address) as service:
        check_answers(service, older, expected)
        engines = service.runtime().engines
        assert len(engines) == len(workers)
        assert all(engine.tokens for engine in engines), engines


def newer_requests(spec: ModelSpec) -> dict[Capability, Request]:
    """Requests for what the older release ignores."""
    constrained = SamplingParams(constraint=Constraint.regex("a+"))
    return {
        Capability.PROMPT_LOGPROBS: ask(spec, PROMPT, CHECKED_TOKENS, prompt_logprobs=1),
        Capability.CONSTRAINTS: ask(spec, PROMPT, CHECKED_TOKENS, sampling=constrained),
    }


def check_refused(
    service: LLMService, asked: dict[Capability, Request], said: dict[str, str]
) -> None:
    outcomes = service.serve(list(asked.values()))
    for capability, outcome in zip(asked, outcomes, strict=True):
        assert isinstance(outcome, PreconditionError), outcome
        assert outcome.reason is ErrorReason.FEATURE_MISSING
        assert outcome.metadata == {"feature": capability.name, **said}


def test_an_older_scheduler_is_never_asked_for_what_it_ignores(
    daemons: Daemons,
    tiny_models: list[ModelSpec],
    older: OlderRelease,
    expected: dict[str, list[int]],
) -> None:
    specs = tiny_models[1:3]
    scheduler = daemons.scheduler(prefix=older.prefix)
    daemons.worker(scheduler.address).wait_ready()
    with LLMService([tiny_node(specs)], address=scheduler.address) as service:
        asked = newer_requests(specs[0])
        asked[Capability.PREFIX_ISOLATION] = ask(specs[0], PROMPT, 1, cache_salt="mine")
        check_refused(service, asked, {})
        with pytest.raises(PreconditionError, match=r"does not know TOOL_PARSERS"):
            asyncio.run(
                service.deploy_model_replicas(
                    ModelSpec("calls", specs[0].path(), tool_parser="hermes")
                )
            )
        check_answers(service, older, expected)


def test_an_older_worker_is_never_asked_for_what_it_ignores(
    daemons: Daemons,
    tiny_models: list[ModelSpec],
    older: OlderRelease,
    expected: dict[str, list[int]],
) -> None:
    specs = tiny_models[1:3]
    scheduler = daemons.scheduler()
    daemons.worker(scheduler.address, prefix=older.prefix).wait_ready()
    with LLMService([tiny_node(specs)], address=scheduler.address) as service:
        asked = newer_requests(specs[0])
        check_refused(service, asked, {"workers": "node_0/0"})
        check_answers(service, older, expected)


def test_beside_an_older_worker_one_that_knows_it_answers(
    daemons: Daemons,
    tiny_models: list[ModelSpec],
    older: OlderRelease,
    expected: dict[str, list[int]],
) -> None:
    specs = tiny_models[1:3]
    scheduler = daemons.scheduler()
    workers = [
        daemons.worker(scheduler.address, prefix=older.prefix),
        daemons.worker(scheduler.address, worker_index=1),
    ]
    for worker in workers:
        worker.wait_ready()
    with LLMService([tiny_node(specs, num_engines=2)], address=scheduler.address) as service:
        until(lambda: scored(service, specs[0]) is not None, START_S)
        for _ in range(4):
            told = scored(service, specs[0])
            assert told is not None
            assert len(told) == len(PROMPT)
        check_answers(service, older, expected)


def scored(service: LLMService, spec: ModelSpec) -> list[PromptLogprob | None] | None:
    """Log-probabilities of the prompt; None while no worker that knows them has the model."""
    [outcome] = service.serve([ask(spec, PROMPT, CHECKED_TOKENS, prompt_logprobs=1)])
    if isinstance(outcome, PreconditionError):
        return None
    tokens_of(outcome)
    assert not isinstance(outcome, Exception)
    return outcome[0].prompt_logprobs
