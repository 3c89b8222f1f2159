"""Whatever bodies hold, nothing fails inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aegaeon.http.schemas import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from tests.integration.gateways import RunningGateway

BODIES = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.integers(-2, 40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
MESSAGES = st.just([{"role": "user", "content": "hi"}])
#: Often right, so that wrong values of other fields are reached.
SOUND: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["short", "short", "short", "nobody"]),
    "prompt": st.text(max_size=12) | st.lists(st.integers(0, 600), max_size=5),
    "messages": MESSAGES,
    "tokens": st.lists(st.integers(0, 600), max_size=5),
}


def bodies(path: str) -> st.SearchStrategy[dict[str, Any]]:
    fields = BODIES[path].model_fields
    required = {name: SOUND[name] | VALUES for name in fields if fields[name].is_required()}
    others = {name: SOUND.get(name, VALUES) for name in fields if name not in required}
    return st.fixed_dictionaries(required, optional=others)


@pytest.fixture(scope="module")
def client(text_gateway: RunningGateway) -> Iterator[httpx.Client]:
    with text_gateway.http() as client:
        yield client
    text_gateway.until_idle()


@pytest.mark.parametrize("path", BODIES)
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_body_makes_the_gateway_fail(
    client: httpx.Client, path: str, data: st.DataObject
) -> None:
    response = client.post(path, json=data.draw(bodies(path)))
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert response.json()["error"]["message"]
