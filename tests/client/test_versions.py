"""A client and a scheduler of neighbouring releases, and a scheduler that goes in whatever way."""

from __future__ import annotations

import grpc
import pytest

from aegaeon import LLMService, Request
from aegaeon.errors import AegaeonError
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
    stub.state.knows_groups = False
    assert tokens([*service.serve(requests())]) == EXPECTED
    assert stub.state.groups == [1] * COUNT


@pytest.mark.parametrize("newer", [False, True])
def test_a_session_goes_on_at_a_scheduler_of_another_release(
    service: LLMService, stub: RunningStub, newer: bool
) -> None:
    stub.state.knows_groups = not newer
    stream = service.stream(Request(SLOW_MODEL, 0.0, 0, [10], 40))
    seen = [next(stream).new_token_id for _ in range(3)]
    stub.stop()
    stub.state.knows_groups = newer
    stub.start()
    assert seen + [step.new_token_id for step in stream] == list(range(11, 51))
    assert tokens([*service.serve(requests())]) == EXPECTED


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
