"""A client and a scheduler of neighbouring releases, and a scheduler that goes in whatever way."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from aegaeon import LLMService, Request, SamplingParams
from aegaeon.capability import OF_SCHEDULER, Capability
from aegaeon.constraint import Constraint
from aegaeon.errors import AegaeonError, ErrorReason, PreconditionError
from aegaeon.model_spec import ModelSpec
from tests.client.conftest import RunningStub
from tests.client.stub_scheduler import SLOW_MODEL

COUNT = 8


def requests(model: str = "echo") -> list[Request]:
    return [Request(model, 0.0, number, [10 * number], 5) for number in range(1, COUNT + 1)]


def tokens(outcomes: list[object]) -> list[list[int]]:
    found = []
    for outcome in outcomes:
        assert isinstance(outcome, list), outcome
        found.append([step.new_token_id for step in outcome])
    return found


EXPECTED = [[10 * number + position for position in range(1, 6)] for number in range(1, COUNT + 1)]


def test_what_comes_together_is_sent_together(service: LLMService, stub: RunningStub) -> None:
    assert tokens([*service.serve(requests())]) == EXPECTED
    assert stub.state.groups == [COUNT]


def test_a_scheduler_that_knows_no_groups_gets_none(service: LLMService, stub: RunningStub) -> None:
    """It does not answer them at all, so that their requests would wait for ever."""
    stub.state.capabilities = OF_SCHEDULER - {Capability.GROUPED_SUBMISSIONS}
    assert tokens([*service.serve(requests())]) == EXPECTED
    assert stub.state.groups == [1] * COUNT


@pytest.mark.parametrize("newer", [False, True])
def test_a_session_goes_on_at_a_scheduler_of_another_release(
    service: LLMService, stub: RunningStub, newer: bool
) -> None:
    stub.state.capabilities = None if newer else OF_SCHEDULER
    stream = service.stream(Request(SLOW_MODEL, 0.0, 0, [10], 40))
    seen = [next(stream).new_token_id for _ in range(3)]
    stub.stop()
    stub.state.capabilities = OF_SCHEDULER if newer else None
    stub.start()
    assert seen + [step.new_token_id for step in stream] == list(range(11, 51))
    assert tokens([*service.serve(requests())]) == EXPECTED


def request_for(**fields: Any) -> Request:
    return Request("echo", 0.0, 0, [10], 5, **fields)


ASKED = [
    (Capability.PROMPT_LOGPROBS, request_for(prompt_logprobs=1)),
    (
        Capability.CONSTRAINTS,
        request_for(sampling=SamplingParams(constraint=Constraint.regex("a+"))),
    ),
    (Capability.PREFIX_ISOLATION, request_for(cache_salt="mine")),
    (Capability.PREFIX_ISOLATION, request_for(prefix_caching=False)),
]


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize(("capability", "request_"), ASKED)
def test_what_a_scheduler_would_ignore_is_not_sent_and_fails_alone(
    service: LLMService,
    stub: RunningStub,
    capability: Capability,
    request_: Request,
    grouped: bool,
) -> None:
    stub.state.capabilities = OF_SCHEDULER - {capability}
    if not grouped:
        stub.state.capabilities -= {Capability.GROUPED_SUBMISSIONS}
    first, *rest = requests()
    outcomes = service.serve([first, request_, *rest])
    refusal = outcomes.pop(1)
    assert isinstance(refusal, PreconditionError)
    assert refusal.reason is ErrorReason.FEATURE_MISSING
    assert refusal.metadata == {"feature": capability.name}
    assert f"does not know {capability.name}" in str(refusal)
    assert tokens(list(outcomes)) == EXPECTED
    assert len(stub.state.submits) == COUNT


@pytest.mark.parametrize(("capability", "request_"), ASKED)
def test_a_scheduler_of_before_capabilities_has_none_of_them(
    service: LLMService, stub: RunningStub, capability: Capability, request_: Request
) -> None:
    stub.state.capabilities = None
    [refusal] = service.serve([request_])
    assert isinstance(refusal, PreconditionError)
    assert refusal.metadata == {"feature": capability.name}


def test_a_session_does_not_go_on_at_a_scheduler_that_would_ignore_part_of_it(
    service: LLMService, stub: RunningStub
) -> None:
    stream = service.stream(Request(SLOW_MODEL, 0.0, 0, [10], 40, cache_salt="mine"))
    seen = [next(stream).new_token_id for _ in range(3)]
    assert seen == [11, 12, 13]
    stub.stop()
    stub.state.capabilities = None
    stub.start()
    with pytest.raises(PreconditionError, match="PREFIX_ISOLATION"):
        list(stream)


@pytest.mark.parametrize(
    ("capability", "spec"),
    [
        (Capability.TOOL_PARSERS, ModelSpec("m", model_path="/", tool_parser="hermes")),
        (Capability.PREFIX_ISOLATION, ModelSpec("m", model_path="/", prefix_caching=False)),
    ],
)
def test_a_model_is_not_deployed_by_half(
    service: LLMService, stub: RunningStub, capability: Capability, spec: ModelSpec
) -> None:
    stub.state.capabilities = OF_SCHEDULER - {capability}
    with pytest.raises(PreconditionError, match=capability.name):
        asyncio.run(service.deploy_model_replicas(spec))
    assert not stub.state.deployed
    asyncio.run(service.deploy_model_replicas(ModelSpec("m", model_path="/")))
    assert len(stub.state.deployed) == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL])
def test_an_end_that_no_scheduler_has_explained_is_a_loss(
    service: LLMService, stub: RunningStub, code: grpc.StatusCode
) -> None:
    """gRPC ends a call with a bare CANCELLED when its server stops between two messages, and with a
    bare INTERNAL when a write meets that."""
    stub.state.break_after, stub.state.break_code = [1, 3], code
    assert tokens([*service.serve(requests())]) == EXPECTED


def test_an_end_that_a_new_stream_would_meet_again_fails_the_requests(
    service: LLMService, stub: RunningStub
) -> None:
    stub.state.break_after, stub.state.break_code = [1], grpc.StatusCode.PERMISSION_DENIED
    outcomes = service.serve(requests())
    assert all(isinstance(outcome, AegaeonError) for outcome in outcomes[1:])
