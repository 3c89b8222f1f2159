"""Requests made from the gateway's own OpenAPI document, sound and broken, make nothing fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.integration.gateways import RunningGateway

#: All but a stream without an end.
OPERATIONS = [
    "POST /v1/completions",
    "POST /v1/chat/completions",
    "POST /v1/responses",
    "POST /tokenize",
    "POST /detokenize",
    "POST /v1/models/deploy",
    "POST /v1/models/undeploy",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "GET /v1/aegaeon/runtime",
    "GET /health",
    "GET /ready",
    "GET /metrics",
]


@pytest.fixture(scope="module")
def operations(text_gateway: RunningGateway) -> Iterator[dict[str, Any]]:
    """What the document describes, by method and path."""
    schema = schemathesis.openapi.from_url(f"{text_gateway.url}/openapi.json")
    found = [result.ok() for result in schema.get_all_operations()]
    yield {operation.label.replace("{name:path}", "{name}"): operation for operation in found}
    text_gateway.until_idle()


def test_the_document_describes_every_operation(operations: dict[str, Any]) -> None:
    assert {*operations} == {*OPERATIONS, "GET /v1/aegaeon/events"}


SOUND, BROKEN = GenerationMode.POSITIVE, GenerationMode.NEGATIVE


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        *((label, SOUND) for label in OPERATIONS),
        # Where there is something to break.
        *((label, BROKEN) for label in OPERATIONS if label.startswith("POST")),
    ],
)
def test_no_request_is_answered_with_a_fault(
    operations: dict[str, Any], label: str, mode: GenerationMode
) -> None:
    cases: st.SearchStrategy[Any] = operations[label].as_strategy(generation_mode=mode)

    @settings(
        max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=cases)
    def ask(case: Any) -> None:
        response = case.call(timeout=60)
        assert response.status_code != 500, response.text
        if response.status_code >= 400:
            error = response.json()["error"]
            assert error["message"]
            assert error["type"]

    ask()
