"""Constraints are checked before any worker sees them, and reach it as they were sent."""

from __future__ import annotations

import pytest

from aegaeon.constraint import Constraint
from aegaeon.rpc.constraints import constraint_message
from aegaeon.v1 import errors_pb2, inference_pb2
from tests.scheduler.conftest import Harness
from tests.scheduler.requests import generate_request
from tests.scheduler.stub_model import answer

DEEP = '{"items":' * 5_000 + "{}" + "}" * 5_000
WRONG = [
    (Constraint.json_schema({"type": "objekt"}), "json_schema", "objekt"),
    (Constraint.json_schema({"type": "array", "uniqueItems": True}), "json_schema", "uniqueItems"),
    (Constraint.json_schema('{"type":'), "json_schema", "char 8"),
    (Constraint.json_schema("[]"), "json_schema", "an object"),
    (Constraint.json_schema(DEEP), "json_schema", ""),
    (Constraint.regex("(a"), "regex", "unclosed group"),
    (Constraint.regex("(" * 5_000), "regex", ""),
    (Constraint.regex("(?=a)b"), "regex", "look-ahead"),
    (Constraint.grammar("start: what"), "grammar", "what"),
    (Constraint.grammar(""), "grammar", ""),
    (Constraint.grammar("start: " + "(" * 5_000), "grammar", ""),
    (Constraint.regex("a" * (256 * 1024 + 1)), "regex", "262144"),
]


def constrained(constraint: inference_pb2.Constraint) -> inference_pb2.GenerateRequest:
    request = generate_request()
    request.sampling.constraint.CopyFrom(constraint)
    return request


@pytest.mark.parametrize(("constraint", "field", "text"), WRONG)
async def test_a_wrong_constraint_is_refused_with_its_problem(
    scheduler: Harness, constraint: Constraint, field: str, text: str
) -> None:
    request = constrained(constraint_message(constraint))
    error = await refused(scheduler, request)
    assert error.reason == errors_pb2.ERROR_REASON_INVALID_FIELD
    assert error.metadata["field"] == f"sampling.constraint.{field}"
    assert text in error.message
    assert len(error.message) < 1_000
    scheduler.assert_empty()


async def test_a_constraint_without_a_form_is_refused(scheduler: Harness) -> None:
    error = await refused(scheduler, constrained(inference_pb2.Constraint()))
    assert error.metadata["field"] == "sampling.constraint"


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint.json_object(),
        Constraint.regex("é+"),
        Constraint.choice(["a", 'b "c"\n']),
        # Only a tokenizer knows of its tokens.
        Constraint.grammar("start: <[5]>"),
    ],
)
async def test_a_sound_one_reaches_the_worker(scheduler: Harness, constraint: Constraint) -> None:
    call = scheduler.inference.Generate(constrained(constraint_message(constraint)))
    tokens = [token async for response in call for token in response.token_ids]
    assert tokens == answer((1, 2, 3), 8)
    [worker] = scheduler.workers
    assert worker.last_spec is not None
    assert worker.last_spec.sampling.constraint == constraint_message(constraint)


async def refused(
    scheduler: Harness, request: inference_pb2.GenerateRequest
) -> errors_pb2.ErrorDetail:
    """How a session refuses a request; others of the same session go on."""
    call = scheduler.inference.Session()
    submits = inference_pb2.SessionSubmits(
        submits=[
            inference_pb2.SessionSubmit(stream_id=1, request=request),
            inference_pb2.SessionSubmit(stream_id=2, request=generate_request()),
        ]
    )
    await call.write(inference_pb2.SessionRequest(submits=submits))
    await call.done_writing()
    tokens, error = [], None
    async for response in call:
        tokens += response.token_ids
        for delta in response.deltas:
            if delta.stream_id == 1:
                error = delta.error
    assert tokens == answer((1, 2, 3), 8)
    assert error is not None
    return error
