"""Requests are checked before they are sent."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aegaeon import Request
from aegaeon.client.messages import timeout_ns, to_generate_request, to_model_spec
from aegaeon.errors import ErrorReason, InvalidRequestError
from aegaeon.models import ModelSpec


def request(**fields: Any) -> Request:
    base: dict[str, Any] = {"model": "m", "arrival_time": 0.0, "request_id": 1}
    base |= {"prompt_token_ids": [1, 2], "decode_tokens": 4}
    return Request(**{**base, **fields})


class Index:
    """As numpy's integers are."""

    def __index__(self) -> int:
        return 3


def test_a_request_becomes_a_message() -> None:
    message = to_generate_request(
        request(
            model=ModelSpec("spec"),
            prompt_token_ids=(1, Index()),
            eos_token_ids=[2],
            stop_token_ids=(5,),
            min_tokens=1,
            max_model_len=100,
            ignore_eos=True,
        )
    )
    assert (message.model, message.label) == ("spec", "1")
    assert list(message.prompt_token_ids) == [1, 3]
    stop = message.stop
    assert (stop.max_new_tokens, stop.min_new_tokens, stop.max_model_len) == (4, 1, 100)
    assert (list(stop.eos_token_ids), list(stop.stop_token_ids)) == ([2], [5])
    assert stop.ignore_eos


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"prompt_token_ids": []}, "EMPTY_PROMPT", "prompt_token_ids is empty"),
        ({"prompt_token_ids": [1, -3]}, "TOKEN_OUT_OF_VOCABULARY", r"\[1\]: token id -3"),
        ({"prompt_token_ids": [2**32]}, "TOKEN_OUT_OF_VOCABULARY", "4294967296"),
        ({"prompt_token_ids": [1, 2.0]}, "INVALID_FIELD", r"\[1\] = 2.0: expected an integer"),
        ({"prompt_token_ids": [True]}, "INVALID_FIELD", "got bool"),
        ({"prompt_token_ids": "text"}, "INVALID_FIELD", "got str"),
        ({"prompt_token_ids": None}, "INVALID_FIELD", "expected a list"),
        ({"decode_tokens": 0}, "INVALID_FIELD", "decode_tokens = 0"),
        ({"decode_tokens": -1}, "INVALID_FIELD", "decode_tokens = -1"),
        ({"decode_tokens": 1.5}, "INVALID_FIELD", "got float"),
        ({"min_tokens": 5}, "INVALID_FIELD", r"at most decode_tokens \(4\)"),
        ({"max_model_len": 0}, "INVALID_FIELD", "max_model_len = 0"),
        ({"stop_token_ids": [-1]}, "TOKEN_OUT_OF_VOCABULARY", "stop_token_ids"),
        ({"model": ""}, "INVALID_FIELD", "model"),
        ({"model": 3}, "INVALID_FIELD", "model"),
        ({"request_id": "x" * 257}, "INVALID_FIELD", "request_id"),
        ({"prefix_caching": "no"}, "INVALID_FIELD", "expected True or False"),
        ({"cache_salt": None}, "INVALID_FIELD", "expected text"),
        ({"cache_salt": "\ud800"}, "INVALID_FIELD", "lone surrogates"),
        ({"cache_salt": "é" * 129}, "INVALID_FIELD", "at most 256 bytes"),
        ({"priority": 9}, "INVALID_FIELD", "priority = 9: expected an integer from -8 to 8"),
        ({"priority": 1.0}, "INVALID_FIELD", "priority = 1.0"),
        ({"ttft_slo_s": 0}, "INVALID_FIELD", "ttft_slo_s = 0"),
        ({"tpot_slo_s": math.nan}, "INVALID_FIELD", "tpot_slo_s = nan"),
        ({"tpot_slo_s": "fast"}, "INVALID_FIELD", "expected a number"),
    ],
)
def test_a_bad_request_is_named(fields: dict[str, Any], reason: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        to_generate_request(request(**fields))
    assert caught.value.reason is ErrorReason[reason]


def test_a_tool_parser_is_one_of_those_that_are_known(tmp_path: Path) -> None:
    spec = ModelSpec("m", str(tmp_path), tool_parser="llama3_json")
    assert to_model_spec(spec).tool_parser == "llama3_json"
    assert to_model_spec(replace(spec, tool_parser=None)).tool_parser == ""
    for given, words in (("mistrale", "did you mean mistral"), ("pythonic", "one of hermes, ")):
        with pytest.raises(InvalidRequestError, match=f"tool_parser = '{given}': .*{words}"):
            to_model_spec(replace(spec, tool_parser=given))


def test_a_prompt_above_the_message_limit_is_refused_with_the_limit() -> None:
    with pytest.raises(InvalidRequestError, match="above the limit of 67108864"):
        to_generate_request(request(prompt_token_ids=[2**31] * 14_000_000))


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan, "3", True])
def test_a_bad_timeout_is_named(seconds: Any) -> None:
    with pytest.raises(InvalidRequestError, match="timeout_s"):
        timeout_ns(request(timeout_s=seconds))


def test_a_timeout_is_sent_in_nanoseconds() -> None:
    assert timeout_ns(request(timeout_s=None)) == 0
    assert timeout_ns(request(timeout_s=1.5)) == 1_500_000_000


def test_priority_and_objectives_go_along() -> None:
    message = to_generate_request(request(priority=-3, ttft_slo_s=2, tpot_slo_s=0.05))
    assert (message.priority, message.ttft_slo_ns, message.tpot_slo_ns) == (
        -3,
        2_000_000_000,
        50_000_000,
    )
    message = to_generate_request(request())
    assert (message.priority, message.ttft_slo_ns, message.tpot_slo_ns) == (0, 0, 0)


def test_objectives_are_the_requests_then_its_specs_then_the_defaults() -> None:
    spec = ModelSpec("m", ttft_slo_s=3.0, tpot_slo_s=0.2)
    assert request(model=spec, ttft_slo_s=1.0).objectives_s == (1.0, 0.2)
    assert request(model=spec).objectives_s == (3.0, 0.2)
    assert request().objectives_s == (10.0, 0.1)
