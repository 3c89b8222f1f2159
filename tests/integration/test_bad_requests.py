"""What is wrong with a request is told to its caller by name, and to nobody else."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc_status import rpc_status

from aegaeon import LLMService, Request
from aegaeon.errors import AegaeonError, ErrorReason, InvalidRequestError, NotFoundError
from aegaeon.model_spec import ModelSpec
from aegaeon.rpc.channel import MAX_MESSAGE_BYTES
from aegaeon.v1 import errors_pb2, inference_pb2, inference_pb2_grpc
from tests.integration.workload import ask, tokens_of

PROMPT = [5, 6, 7]
NEW_TOKENS = 24
CONTEXT = 1024
VOCABULARY = 512
#: A prompt of 5 MiB on the wire, at four bytes a token.
HUGE = 5 * 2**20 // 4


@pytest.fixture(scope="module")
def model(tiny_models: list[ModelSpec]) -> ModelSpec:
    return tiny_models[1]


@pytest.fixture(scope="module")
def wanted(service: LLMService, model: ModelSpec) -> list[int]:
    """What the good requests of this module get, whoever is beside them."""
    return tokens_of(service.serve([ask(model, PROMPT, NEW_TOKENS)])[0])


Beside = Callable[[Request], AegaeonError]


@pytest.fixture
def beside(service: LLMService, model: ModelSpec, wanted: list[int]) -> Beside:
    """Serve a bad request between good ones; its error."""

    def serve(bad: Request) -> AegaeonError:
        good = ask(model, PROMPT, NEW_TOKENS)
        before, error, after = service.serve([good, bad, good])
        assert tokens_of(before) == tokens_of(after) == wanted
        assert isinstance(error, AegaeonError), error
        return error

    return serve


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"prompt_token_ids": []}, ErrorReason.EMPTY_PROMPT, ["empty"]),
        (
            {"prompt_token_ids": [5] * CONTEXT},
            ErrorReason.PROMPT_TOO_LONG,
            ["1024 tokens", "context"],
        ),
        ({"prompt_token_ids": [5] * 3000}, ErrorReason.PROMPT_TOO_LONG, ["3000", "1024"]),
        ({"prompt_token_ids": [5] * 90, "max_model_len": 80}, ErrorReason.PROMPT_TOO_LONG, ["80"]),
        (
            {"prompt_token_ids": [5, VOCABULARY]},
            ErrorReason.TOKEN_OUT_OF_VOCABULARY,
            ["512", "vocabulary"],
        ),
        ({"prompt_token_ids": [5, -1]}, ErrorReason.TOKEN_OUT_OF_VOCABULARY, ["[1]", "-1"]),
        ({"prompt_token_ids": [2**40]}, ErrorReason.TOKEN_OUT_OF_VOCABULARY, ["1099511627776"]),
        ({"stop_token_ids": [9999]}, ErrorReason.TOKEN_OUT_OF_VOCABULARY, ["9999"]),
        ({"prompt_token_ids": "text"}, ErrorReason.INVALID_FIELD, ["prompt_token_ids", "str"]),
        ({"decode_tokens": 0}, ErrorReason.INVALID_FIELD, ["decode_tokens", "0"]),
        ({"decode_tokens": -3}, ErrorReason.INVALID_FIELD, ["decode_tokens", "-3"]),
        ({"min_tokens": 99}, ErrorReason.INVALID_FIELD, ["min_tokens", "99"]),
        ({"max_model_len": CONTEXT + 1}, ErrorReason.INVALID_FIELD, ["max_model_len", "1024"]),
        ({"timeout_s": 0}, ErrorReason.INVALID_FIELD, ["timeout_s"]),
    ],
)
def test_a_bad_field_is_named(
    beside: Beside, model: ModelSpec, fields: dict[str, Any], reason: ErrorReason, words: list[str]
) -> None:
    error = beside(replace(ask(model, PROMPT, NEW_TOKENS), **fields))
    assert isinstance(error, InvalidRequestError)
    assert error.reason is reason
    assert all(word in str(error) for word in words), str(error)


def test_both_lengths_are_there_for_programs(beside: Beside, model: ModelSpec) -> None:
    error = beside(ask(model, [5] * 2000, 1))
    assert error.metadata == {"prompt_tokens": "2000", "max_model_len": str(CONTEXT)}


def test_an_unknown_model_is_named_with_those_that_there_are(
    beside: Beside, model: ModelSpec
) -> None:
    error = beside(ask("nobody/knows-it", PROMPT, 1))
    assert isinstance(error, NotFoundError)
    assert "nobody/knows-it" in str(error)
    assert model.name in str(error)


def test_the_longest_prompt_is_served(service: LLMService, model: ModelSpec) -> None:
    [output] = service.serve([ask(model, [5] * (CONTEXT - 1), NEW_TOKENS)])
    assert len(tokens_of(output)) == 1


def test_a_prompt_of_five_mebibytes_is_answered(beside: Beside, model: ModelSpec) -> None:
    prompt = [2**21] * HUGE
    message = inference_pb2.GenerateRequest(prompt_token_ids=prompt)
    assert message.ByteSize() > 5 * 2**20
    start = time.monotonic()
    error = beside(ask(model, prompt, 1))
    assert error.reason is ErrorReason.PROMPT_TOO_LONG
    assert error.metadata == {"prompt_tokens": str(HUGE), "max_model_len": str(CONTEXT)}
    assert time.monotonic() - start < 10


def test_a_message_above_the_limit_is_refused_with_the_limit(
    beside: Beside, model: ModelSpec
) -> None:
    error = beside(ask(model, [2**32 - 1] * (MAX_MESSAGE_BYTES // 5 + 1), 1))
    assert isinstance(error, InvalidRequestError)
    assert str(MAX_MESSAGE_BYTES) in str(error)


class Wire:
    """A client that checks nothing itself, as one in another language may."""

    def __init__(self, address: str) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(address, options=options)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self.channel)

    def error(self, **fields: Any) -> tuple[grpc.StatusCode, str, str]:
        """Status code, name of the reason and message that a request gets."""
        with pytest.raises(grpc.RpcError) as caught:
            list(self._stub.Generate(inference_pb2.GenerateRequest(**fields), timeout=30))
        call: Any = caught.value
        detail = errors_pb2.ErrorDetail()
        status = rpc_status.from_call(call)
        if status is not None:
            status.details[0].Unpack(detail)
        reason = errors_pb2.ErrorReason.Name(detail.reason).removeprefix("ERROR_REASON_")
        return call.code(), reason, call.details()


STOP = {"max_new_tokens": 4}


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"prompt_token_ids": []}, grpc.StatusCode.INVALID_ARGUMENT, "EMPTY_PROMPT"),
        ({"prompt_token_ids": [512]}, grpc.StatusCode.INVALID_ARGUMENT, "TOKEN_OUT_OF_VOCABULARY"),
        ({"prompt_token_ids": [5] * 1024}, grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LONG"),
        (
            {"stop": {"max_new_tokens": 2, "min_new_tokens": 3}},
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_FIELD",
        ),
        ({"label": "x" * 257}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
        ({"model": ""}, grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"),
        (
            {"prompt_token_ids": [2**32 - 1] * (MAX_MESSAGE_BYTES // 5 + 1)},
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "UNSPECIFIED",
        ),
    ],
)
def test_the_scheduler_checks_for_itself(
    service: LLMService,
    model: ModelSpec,
    wanted: list[int],
    fields: dict[str, Any],
    code: grpc.StatusCode,
    reason: str,
) -> None:
    good = {"model": model.name, "prompt_token_ids": PROMPT, "stop": STOP}
    wire = Wire(service.address)
    with wire.channel, ThreadPoolExecutor(1) as thread:
        running = thread.submit(service.serve, [ask(model, PROMPT, NEW_TOKENS)] * 4)
        found = wire.error(**{**good, **fields})
        assert found[:2] == (code, reason)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            assert str(MAX_MESSAGE_BYTES) in found[2]
        assert [tokens_of(output) for output in running.result()] == [wanted] * 4


def test_equal_request_ids_are_only_labels(
    service: LLMService, model: ModelSpec, wanted: list[int]
) -> None:
    same = [replace(ask(model, PROMPT, count), request_id="same") for count in range(1, NEW_TOKENS)]
    with LLMService(address=service.address) as other, ThreadPoolExecutor(2) as threads:
        for outputs in threads.map(lambda client: client.serve(same), [service, other]):
            for count, output in enumerate(outputs, start=1):
                assert tokens_of(output) == wanted[:count]


def test_ending_one_request_spares_those_of_the_same_id(
    service: LLMService, model: ModelSpec, wanted: list[int]
) -> None:
    request = replace(ask(model, PROMPT, 1000), request_id="same")
    for _ in range(5):
        ended = service.stream(request)
        next(ended)
        kept = service.stream(replace(request, decode_tokens=NEW_TOKENS))
        first = next(kept).new_token_id
        ended.close()
        assert [first, *(step.new_token_id for step in kept)] == wanted
