"""A request that brings the tokens of an earlier attempt goes on, or ends at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from aegaeon import LLMService
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.workload import ask, tokens_of

PROMPT = [9, 8, 7]
NEW_TOKENS = 20
#: The tiny checkpoints' own end-of-sequence id.
EOS = 2


@pytest.fixture(scope="module")
def wanted(service: LLMService, tiny_models: list[ModelSpec]) -> list[int]:
    return tokens_of(service.serve([ask(tiny_models[1], PROMPT, NEW_TOKENS)])[0])


def resume(
    service: LLMService, spec: ModelSpec, generated: Sequence[int], **stop: Any
) -> tuple[list[int], str]:
    """Tokens after those in ``generated``, and the finish reason."""
    request = inference_pb2.GenerateRequest(
        model=spec.name,
        prompt_token_ids=PROMPT,
        generated_token_ids=generated,
        stop=inference_pb2.StopConditions(max_new_tokens=NEW_TOKENS, **stop),
    )
    with grpc.insecure_channel(service.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        responses = list(stub.Generate(request, timeout=30))
    tokens = [token for response in responses for token in response.token_ids]
    return tokens, inference_pb2.FinishReason.Name(responses[-1].finish_reason)


@pytest.mark.parametrize("kept", [0, 1, 7, NEW_TOKENS - 1])
def test_the_rest_follows_what_was_kept(
    service: LLMService, tiny_models: list[ModelSpec], wanted: list[int], kept: int
) -> None:
    tokens, reason = resume(service, tiny_models[1], wanted[:kept], ignore_eos=True)
    assert tokens == wanted[kept:]
    assert reason == "FINISH_REASON_LENGTH"


@pytest.mark.parametrize(
    ("generated", "stop", "reason"),
    [
        ([5, EOS], {}, "FINISH_REASON_STOP"),
        ([5, 6], {"stop_token_ids": [6]}, "FINISH_REASON_STOP"),
        ([5, 6], {"eos_token_ids": [6]}, "FINISH_REASON_STOP"),
        ([5] * NEW_TOKENS, {}, "FINISH_REASON_LENGTH"),
        ([5] * 5, {"max_model_len": 8}, "FINISH_REASON_LENGTH"),
    ],
)
def test_what_had_ended_already_ends_at_once(
    service: LLMService,
    tiny_models: list[ModelSpec],
    generated: list[int],
    stop: dict[str, Any],
    reason: str,
) -> None:
    turns = service.runtime().engines[0].turns
    assert resume(service, tiny_models[1], generated, **stop) == ([], reason)
    assert service.runtime().engines[0].turns == turns


def test_an_ignored_end_does_not_end_it(service: LLMService, tiny_models: list[ModelSpec]) -> None:
    tokens, reason = resume(service, tiny_models[1], [5, EOS], ignore_eos=True)
    assert len(tokens) == NEW_TOKENS - 2
    assert reason == "FINISH_REASON_LENGTH"
