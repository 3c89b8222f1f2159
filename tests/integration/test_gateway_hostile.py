"""Requests that are meant to do harm: each is answered with an error object, and harms nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.gateways import RunningGateway

CHAT: dict[str, Any] = {
    "model": "tools",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 2,
}
TEXT: dict[str, Any] = {"model": "long", "prompt": "hello", "max_tokens": 2}
CHATS, TEXTS = "/v1/chat/completions", "/v1/completions"
LONE = "\ud800"


@pytest.fixture(scope="module")
def client(text_gateway: RunningGateway) -> Iterator[httpx.Client]:
    with text_gateway.http() as client:
        yield client
    text_gateway.until_idle()


def check(client: httpx.Client, response: httpx.Response, *statuses: int) -> str:
    """Its code; and somebody else is served."""
    assert response.status_code in (statuses or (400,)), response.text[:2000]
    other = client.post(TEXTS, json=TEXT)
    assert other.status_code == 200, other.text
    if response.status_code == 200:
        json.loads(response.content.decode())
        return ""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(error["message"]) < 5000
    return str(error["code"])


def with_raw(body: dict[str, Any], field: str, raw: str) -> bytes:
    """A body with a field whose value is no JSON that Python would write."""
    return (json.dumps(body)[:-1] + f', "{field}": {raw}}}').encode()


@pytest.mark.parametrize(
    "raw", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 5000]
)
@pytest.mark.parametrize("field", ["temperature", "seed", "top_k", "n", "min_p"])
def test_numbers_that_are_none(client: httpx.Client, field: str, raw: str) -> None:
    check(client, client.post(TEXTS, content=with_raw(TEXT, field, raw)))


@pytest.mark.parametrize(
    "raw", ['{"5": NaN}', '{"5": 1e999}', '{"1e3": 1}', '{"\\u0665": 1}', '{"5 ": 1}']
)
def test_biases_that_are_none(client: httpx.Client, raw: str) -> None:
    check(client, client.post(TEXTS, content=with_raw(TEXT, "logit_bias", raw)))


def test_more_biases_than_are_taken(client: httpx.Client) -> None:
    many = {str(number): 1 for number in range(20_000)}
    assert check(client, client.post(TEXTS, json={**TEXT, "logit_bias": many})) == "invalid_value"
    few = {str(number): 1 for number in range(500)}
    check(client, client.post(TEXTS, json={**TEXT, "logit_bias": few}), 200)


DEEP = 100_000


@pytest.mark.parametrize(
    ("path", "body", "field", "raw"),
    [
        (CHATS, CHAT, "messages", "[" * DEEP + "]" * DEEP),
        (CHATS, CHAT, "chat_template_kwargs", '{"a":' * DEEP + "1" + "}" * DEEP),
        (CHATS, CHAT, "chat_template_kwargs", '{"a":' * 150 + "1" + "}" * 150),
        (CHATS, CHAT, "guided_json", '{"items":' * DEEP + "{}" + "}" * DEEP),
        (CHATS, CHAT, "guided_json", '{"items":' * 150 + "{}" + "}" * 150),
        (TEXTS, TEXT, "guided_json", json.dumps('{"items":' * 9999 + "{}" + "}" * 9999)),
        (TEXTS, TEXT, "guided_regex", json.dumps("(" * 9999 + "a" + ")" * 9999)),
        (TEXTS, TEXT, "guided_regex", json.dumps("((a{999}){999}){999}")),
        (TEXTS, TEXT, "guided_grammar", json.dumps("start: " + "(" * 9999 + '"a"' + ")" * 9999)),
        (TEXTS, TEXT, "metadata", "{" * DEEP),
    ],
)
def test_nesting_without_end(
    client: httpx.Client, path: str, body: dict[str, Any], field: str, raw: str
) -> None:
    rest = {key: value for key, value in body.items() if key != field}
    check(client, client.post(path, content=with_raw(rest, field, raw)), 200, 400)


def test_calls_of_before_may_be_anything(client: httpx.Client) -> None:
    for arguments in ("[" * 99_999, "NaN", '{"a": NaN}', "", "x", '"\\ud800"', "1" * 9999):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        before = [{"role": "assistant", "tool_calls": [call]}]
        answer = client.post(CHATS, json={**CHAT, "messages": [*CHAT["messages"], *before]})
        check(client, answer, 200, 400)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXTS, {**TEXT, "prompt": LONE}),
        (TEXTS, {**TEXT, "stop": LONE}),
        (TEXTS, {**TEXT, "user": LONE}),
        (TEXTS, {**TEXT, "model": LONE}),
        (TEXTS, {**TEXT, "cache_salt": LONE}),
        (TEXTS, {**TEXT, LONE: 1}),
        (TEXTS, {**TEXT, "logit_bias": {LONE: 1}}),
        (TEXTS, {**TEXT, "guided_choice": [LONE]}),
        (TEXTS, {**TEXT, "guided_regex": LONE}),
        (TEXTS, {**TEXT, "guided_json": {"const": LONE}}),
        (CHATS, {**CHAT, "messages": [{"role": "user", "content": LONE}]}),
        (CHATS, {**CHAT, "chat_template_kwargs": {"closing": LONE}}),
        (CHATS, {**CHAT, "chat_template_kwargs": {LONE: 1}}),
        (CHATS, {**CHAT, "tools": [{"type": "function", "function": {"name": LONE}}]}),
        ("/tokenize", {"model": "long", "prompt": LONE}),
    ],
)
def test_halves_of_characters(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    check(client, client.post(path, content=json.dumps(body).encode()))


@pytest.mark.parametrize("text", ["\u0000", "\u0000\uffff\U0010ffff", "\u202e", "\x7f\x1b[2J"])
def test_odd_characters_are_characters(client: httpx.Client, text: str) -> None:
    for path, body in (
        (TEXTS, {**TEXT, "prompt": text, "stop": text, "user": text}),
        (CHATS, {**CHAT, "messages": [{"role": "user", "content": text, "name": text}]}),
    ):
        check(client, client.post(path, json=body), 200)
    check(client, client.post(TEXTS, json={**TEXT, "model": text}), 400, 404)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig", "latin-1", "utf-7"])
def test_other_encodings(client: httpx.Client, encoding: str) -> None:
    content = json.dumps({**TEXT, "prompt": "é+"}, ensure_ascii=False).encode(encoding)
    headers = {"content-type": f"application/json; charset={encoding}"}
    check(client, client.post(TEXTS, content=content, headers=headers), 200, 400)
    gzip = {"content-encoding": "gzip"}
    check(client, client.post(TEXTS, content=b"\x1f\x8b\x08\x00", headers=gzip))


def test_names_twice_and_things_behind(client: httpx.Client) -> None:
    twice = b'{"model": "long", "model": "nobody", "prompt": "a", "max_tokens": 1}'
    check(client, client.post(TEXTS, content=twice), 200, 400, 404)
    for behind in (b"{}", b"\x00", b",", b"\n\nx"):
        check(client, client.post(TEXTS, content=json.dumps(TEXT).encode() + behind))


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": ""}],
    ],
)
def test_messages_without_words(client: httpx.Client, messages: list[Any]) -> None:
    check(client, client.post(CHATS, json={**CHAT, "messages": messages}), 200, 400)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_thousands_of_tools_and_large_ones(client: httpx.Client, choice: str, strict: bool) -> None:
    def tool(number: int, width: int) -> dict[str, Any]:
        fields = {f"field_{index}": {"type": "string"} for index in range(width)}
        parameters = {"type": "object", "properties": fields, "required": list(fields)}
        function = {"name": f"f{number}", "parameters": parameters, "strict": strict}
        return {"type": "function", "function": function}

    for count, width, statuses in ((5000, 1, (400,)), (128, 40, (200, 400)), (1, 4000, (200, 400))):
        tools = [tool(number, width) for number in range(count)]
        body = {**CHAT, "tools": tools, "tool_choice": choice}
        check(client, client.post(CHATS, json=body), *statuses)


@pytest.mark.parametrize("value", ["\r\nx: y", "é", "\x00", "a" * 60_000, ""])
def test_request_ids_that_are_none(client: httpx.Client, value: str) -> None:
    headers = [(b"x-request-id", value.encode()), (b"traceparent", value.encode()[:9])]
    kept = [(name, given) for name, given in headers if not set(given) & set(b"\r\n\x00")]
    answer = client.post(TEXTS, json=TEXT, headers=kept)
    check(client, answer, 200)
    assert answer.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/%00",
        "/v1/models/%ff",
        "/v1/models/" + "a/" * 500,
        "/%2e%2e/%2e%2e",
        "/v1/models/é",
    ],
)
def test_paths_to_nowhere(client: httpx.Client, path: str) -> None:
    check(client, client.get(path), 400, 404)
