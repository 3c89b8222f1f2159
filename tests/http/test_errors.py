"""Errors of the family as OpenAI's objects."""

from __future__ import annotations

import json

import pytest

from aegaeon.errors import AegaeonError, ErrorReason, InvalidRequestError
from aegaeon.http.errors import ApiError, answer, from_validation, to_api_error
from aegaeon.http.schemas import CompletionBody

#: Faults that no caller can do anything about.
INTERNAL = {
    ErrorReason.UNSPECIFIED,
    ErrorReason.CONTRACT_MISMATCH,
    ErrorReason.ENGINE_FAULT,
    ErrorReason.STALE_LEASE,
    ErrorReason.KV_NOT_FOUND,  # between workers alone
}


@pytest.mark.parametrize("reason", ErrorReason)
def test_every_reason_has_a_status_and_a_code(reason: ErrorReason) -> None:
    response = answer(to_api_error(AegaeonError("text", reason=reason)))
    error = json.loads(response.body)["error"]
    assert error["message"] == "text"
    assert (response.status_code == 500) == (reason in INTERNAL)
    assert (error["code"] == "internal_error") == (reason in INTERNAL)
    assert (error["type"] == "server_error") == (response.status_code >= 500)
    assert ("retry-after" in response.headers) == (response.status_code in (429, 503))


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("sampling.top_p", "top_p"),
        ("sampling.logit_bias[7]", "logit_bias"),
        ("model", "model"),
        ("prompt_token_ids", "prompt"),
        ("stop.min_new_tokens", "min_tokens"),
        ("stop.stop_token_ids", "stop_token_ids"),
        ("spec.name", "model"),
    ],
)
def test_the_field_has_the_name_that_http_has_for_it(field: str, param: str) -> None:
    error = InvalidRequestError(f"{field} is wrong", metadata={"field": field})
    told = to_api_error(error).body["error"]
    assert told["param"] == param
    assert told["message"].startswith(param)
    assert told["message"].endswith(" is wrong")


def test_a_form_has_no_name_of_its_own() -> None:
    error = InvalidRequestError(
        "sampling.constraint.regex: no", metadata={"field": "sampling.constraint.regex"}
    )
    told = to_api_error(error).body["error"]
    assert (told["message"], told["param"]) == ("the form asked for: no", None)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"{", None, "invalid_json"),
        (b"[]", None, "invalid_value"),
        (b'{"model": "m"}', "prompt", "invalid_value"),
        (b'{"model": "m", "prompt": "a", "what": 1}', "what", "unknown_field"),
        (b'{"model": "m", "prompt": "a", "n": "1"}', "n", "invalid_value"),
        (b'{"model": "m", "prompt": [1, -2]}', "prompt[1]", "invalid_value"),
        (b'{"model": "m", "prompt": "a", "stop": ["a", ""]}', "stop[1]", "invalid_value"),
    ],
)
def test_a_wrong_body_names_its_field(body: bytes, param: str | None, code: str) -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        CompletionBody.model_validate_json(body)
    error: ApiError = from_validation(caught.value)  # type: ignore[arg-type]
    assert (error.body["error"]["param"], error.body["error"]["code"]) == (param, code)


def test_a_million_wrong_ids_are_refused_without_a_million_errors() -> None:
    body = b'{"model": "m", "prompt": [' + b",".join([b"-1"] * 1_000_000) + b"]}"
    with pytest.raises(ValueError, match="validation error") as caught:
        CompletionBody.model_validate_json(body)
    assert caught.value.error_count() < 10  # type: ignore[attr-defined]
