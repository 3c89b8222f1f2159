"""Sampling through real daemons: by `LLMService` and by the contract."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from aegaeon import LLMService, SamplingParams
from aegaeon.errors import AegaeonError, ErrorReason, InvalidRequestError
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.workload import ask, prompts, tokens_of
from tests.worker.engine.reference import reference_log_probabilities

PROMPT = [9, 8, 7]
NEW_TOKENS = 24
SAMPLING: dict[str, Any] = {
    "temperature": 1.1,
    "top_k": 10,
    "top_p": 0.97,
    "min_p": 0.001,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "logit_bias": {17: 3.0},
    "seed": 5,
}
SAMPLED = SamplingParams(**SAMPLING)


@pytest.fixture(scope="module")
def wanted(service: LLMService, tiny_models: list[ModelSpec]) -> list[int]:
    return tokens_of(service.serve([ask(tiny_models[1], PROMPT, NEW_TOKENS, sampling=SAMPLED)])[0])


def wire_tokens(service: LLMService, model: str, **fields: Any) -> list[int]:
    request = inference_pb2.GenerateRequest(
        model=model,
        prompt_token_ids=PROMPT,
        stop=inference_pb2.StopConditions(max_new_tokens=NEW_TOKENS, ignore_eos=True),
        **fields,
    )
    with grpc.insecure_channel(service.address) as channel:
        responses = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request, timeout=60)
        return [token for response in responses for token in response.token_ids]


def test_a_seed_gives_the_same_tokens_beside_others_and_in_turn_with_other_models(
    service: LLMService, tiny_models: list[ModelSpec], wanted: list[int]
) -> None:
    requests = [
        ask(model, prompt, NEW_TOKENS, sampling=replace(SAMPLED, seed=number))
        for number, prompt in enumerate(prompts(6))
        for model in tiny_models
    ]
    mine = ask(tiny_models[1], PROMPT, NEW_TOKENS, sampling=SAMPLED)
    first = service.serve([*requests, mine, *requests, mine])
    middle = len(requests)
    assert tokens_of(first[middle]) == tokens_of(first[-1]) == wanted
    assert [tokens_of(output) for output in first[:middle]] == [
        tokens_of(output) for output in first[middle + 1 : -1]
    ]


def test_greedy_requests_are_as_without_sampling(
    service: LLMService, tiny_models: list[ModelSpec], wanted: list[int]
) -> None:
    plain = ask(tiny_models[1], PROMPT, NEW_TOKENS)
    greedy = replace(plain, sampling=SamplingParams())
    narrow = replace(plain, sampling=SamplingParams(temperature=2.0, top_k=1))
    outputs = service.serve([plain, greedy, narrow, replace(plain, sampling=SAMPLED)])
    one, two, three, sampled = (tokens_of(output) for output in outputs)
    assert one == two == three
    assert sampled == wanted != one


def test_without_a_seed_every_request_draws_its_own(
    service: LLMService, tiny_models: list[ModelSpec]
) -> None:
    request = ask(tiny_models[1], PROMPT, NEW_TOKENS, sampling=SamplingParams(temperature=1.0))
    outputs = service.serve([request] * 4)
    assert len({tuple(tokens_of(output)) for output in outputs}) == 4


def test_log_probabilities_come_to_those_that_ask(
    service: LLMService, tiny_models: list[ModelSpec], wanted: list[int]
) -> None:
    plain = ask(tiny_models[1], PROMPT, NEW_TOKENS, sampling=SAMPLED)
    asking = [replace(plain, sampling=replace(SAMPLED, logprobs=count)) for count in (0, 2, 20)]
    greedy = ask(tiny_models[1], PROMPT, NEW_TOKENS, sampling=SamplingParams(logprobs=1))
    without, *outputs, best = service.serve([plain, *asking, greedy])
    assert [tokens_of(output) for output in outputs] == [wanted] * 3
    assert isinstance(without, list)
    assert isinstance(best, list)
    assert all(step.logprob is step.top_logprobs is None for step in without)
    for step in best:
        assert step.top_logprobs == {step.new_token_id: step.logprob}
    for count, output in zip((0, 2, 20), outputs, strict=True):
        assert isinstance(output, list)
        reference = reference_log_probabilities(Path(tiny_models[1].path()), [*PROMPT, *wanted])
        for step, row in zip(output, reference[len(PROMPT) - 1 :], strict=False):
            assert step.logprob == pytest.approx(float(row[step.new_token_id]), abs=1e-4)
            assert step.top_logprobs is not None
            top = list(step.top_logprobs.values())
            assert top == sorted(top, reverse=True)
            assert top == pytest.approx(row.topk(count).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("kept", [0, 1, 11, NEW_TOKENS - 1])
def test_generate_goes_on_from_tokens_that_were_kept(
    service: LLMService, tiny_models: list[ModelSpec], wanted: list[int], kept: int
) -> None:
    sampling = inference_pb2.SamplingParameters(**SAMPLING)
    tokens = wire_tokens(
        service, tiny_models[1].name, sampling=sampling, generated_token_ids=wanted[:kept]
    )
    assert tokens == wanted[kept:]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 101.0),
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_k", 1.5),
        ("seed", 2**63),
        ("seed", "x"),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {5: "much"}),
        ("logit_bias", [5]),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
    ],
)
def test_a_value_out_of_bounds_is_named_and_harms_nobody(
    service: LLMService,
    tiny_models: list[ModelSpec],
    wanted: list[int],
    field: str,
    value: Any,
) -> None:
    good = ask(tiny_models[1], PROMPT, NEW_TOKENS, sampling=SAMPLED)
    bad = replace(good, sampling=replace(SAMPLED, **{field: value}))
    before, error, after = service.serve([good, bad, good])
    assert tokens_of(before) == tokens_of(after) == wanted
    assert isinstance(error, InvalidRequestError), error
    assert error.reason is ErrorReason.INVALID_FIELD
    assert error.metadata["field"].startswith(f"sampling.{field}")


def test_a_biased_id_outside_the_vocabulary_is_named(
    service: LLMService, tiny_models: list[ModelSpec]
) -> None:
    request = ask(tiny_models[1], PROMPT, 1, sampling=SamplingParams(logit_bias={512: 1.0}))
    [error] = service.serve([request])
    assert isinstance(error, AegaeonError)
    assert error.reason is ErrorReason.TOKEN_OUT_OF_VOCABULARY
    assert error.metadata["token_id"] == "512"


@pytest.mark.parametrize("field", ["temperature", "min_p", "top_p", "repetition_penalty"])
def test_the_scheduler_refuses_what_is_no_number(
    service: LLMService, tiny_models: list[ModelSpec], field: str
) -> None:
    sampling = inference_pb2.SamplingParameters(**{field: float("nan")})
    with pytest.raises(grpc.RpcError) as caught:
        wire_tokens(service, tiny_models[1].name, sampling=sampling)
    call: Any = caught.value
    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"sampling.{field}" in call.details()
