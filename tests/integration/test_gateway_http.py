"""The gateway's own endpoints, limits and failures, over plain HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.daemons import START_S, Daemons, until
from tests.integration.gateways import MAX_BODY_BYTES, RunningGateway, running_gateway
from tests.integration.text_model import text_model
from tests.worker.models.tiny import VOCAB_SIZE

BODY = {"model": "m", "prompt": "hello", "max_tokens": 8, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory):
    return text_model("m", tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def gateway(
    spec, tmp_path_factory: pytest.TempPathFactory, shm_dir: Path
) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("gw"), shm_dir, [spec]) as running:
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with gateway.http() as client:
        yield client


def code_of(response: httpx.Response) -> str:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    return str(error["code"])


def test_models_are_listed_with_their_limits(client: httpx.Client) -> None:
    [model] = client.get("/v1/models").json()["data"]
    assert model == client.get("/v1/models/m").json()
    assert (model["id"], model["object"], model["ready"]) == ("m", "model", True)
    assert model["max_model_len"] == 65_536
    assert code_of(client.get("/v1/models/a/b")) == "model_not_found"


def test_what_is_not_there_is_an_error_object_too(client: httpx.Client) -> None:
    assert code_of(client.get("/v2")) == "not_found"
    response = client.put("/health")
    assert (response.status_code, code_of(response)) == (405, "method_not_allowed")
    assert "GET" in response.headers["allow"]


def test_broken_bodies_are_refused(client: httpx.Client) -> None:
    for content in (b"", b"{", b"[]", b"\xff", b'{"model": "m", "prompt": "\\ud800"}', b"[" * 9999):
        response = client.post("/v1/completions", content=content)
        assert response.status_code == 400, content
        assert code_of(response) in ("invalid_json", "invalid_value")


def test_bodies_above_the_limit_are_refused_with_and_without_a_length(
    client: httpx.Client,
) -> None:
    content = json.dumps({**BODY, "prompt": "x" * MAX_BODY_BYTES}).encode()
    halves = [content[: len(content) // 2], content[len(content) // 2 :]]
    for sent in (content, iter(halves)):
        response = client.post("/v1/completions", content=sent)
        assert (response.status_code, code_of(response)) == (413, "body_too_large")


def test_a_request_id_is_kept_or_made(client: httpx.Client) -> None:
    own = client.get("/health", headers={"x-request-id": "mine-1"})
    assert own.headers["x-request-id"] == "mine-1"
    made = client.get("/health", headers={"x-request-id": "x" * 200})
    assert made.headers["x-request-id"].startswith("req-")


def test_text_goes_through_tokens_and_back(client: httpx.Client) -> None:
    tokens = client.post("/tokenize", json={"model": "m", "prompt": "héllo ☃"}).json()
    assert tokens["count"] == len(tokens["tokens"])
    text = client.post("/detokenize", json={"model": "m", "tokens": tokens["tokens"]}).json()
    assert text == {"prompt": "héllo ☃"}
    assert code_of(client.post("/tokenize", json={"model": "m"})) == "invalid_value"
    beyond = client.post("/detokenize", json={"model": "m", "tokens": [5, VOCAB_SIZE]})
    assert (beyond.status_code, code_of(beyond)) == (400, "token_out_of_vocabulary")


def test_events_tell_of_requests_and_silence_is_filled(
    gateway: RunningGateway, client: httpx.Client
) -> None:
    with client.stream("GET", "/v1/aegaeon/events") as stream, gateway.http() as other:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert next(lines) == ": watching"
        assert next(line for line in lines if line == ": heartbeat")
        headers = {"x-request-id": "watched"}
        assert other.post("/v1/completions", json=BODY, headers=headers).status_code == 200
        changes = []
        for line in lines:
            if line.startswith("data: ") and "request" in (data := json.loads(line[6:])):
                changes.append((data["request"]["label"], data["request"]["change"]))
            if ("watched", "finished") in changes:
                break
        assert ("watched", "accepted") in changes


def test_a_long_prompt_delays_nobody(gateway: RunningGateway) -> None:
    async def run() -> tuple[int, httpx.Response]:
        async with gateway.http_async() as client:
            big = {**BODY, "prompt": "some words " * 500_000}
            long = asyncio.create_task(client.post("/v1/completions", json=big))
            served = 0
            while not long.done():
                assert (await client.post("/v1/completions", json=BODY)).status_code == 200
                served += 1
            return served, await long

    served, long = asyncio.run(run())
    assert code_of(long) == "context_length_exceeded"
    assert served >= 5


def test_a_model_comes_and_goes(
    gateway: RunningGateway, client: httpx.Client, tmp_path: Path
) -> None:
    other = text_model("other", tmp_path)
    body = {"model": "other", "path": other.path(), "max_model_len": 128}
    assert client.post("/v1/models/deploy", json=body).json()["ready"] == ["node_0"]
    assert client.get("/v1/models/other").json()["max_model_len"] == 128
    assert client.post("/v1/completions", json={**BODY, "model": "other"}).status_code == 200
    conflict = client.post("/v1/models/deploy", json={**body, "max_model_len": 64})
    assert (conflict.status_code, code_of(conflict)) == (409, "model_conflict")
    gone = client.post("/v1/models/undeploy", json={"model": "other"}).json()
    assert gone == {"model": "other", "removed": ["node_0"], "failed": {}}
    assert code_of(client.post("/v1/completions", json={**BODY, "model": "other"})) == (
        "model_not_found"
    )


def test_a_model_that_nobody_can_load_is_507(client: httpx.Client, tmp_path: Path) -> None:
    broken = text_model("broken", tmp_path)
    (Path(broken.path()) / "model.safetensors").write_bytes(b"")
    response = client.post("/v1/models/deploy", json={"model": "broken", "path": broken.path()})
    assert (response.status_code, code_of(response)) == (507, "checkpoint_invalid")
    missing = client.post("/v1/models/deploy", json={"model": "none", "path": "/nowhere"})
    assert (missing.status_code, code_of(missing)) == (400, "invalid_value")


def test_the_openapi_document_describes_the_bodies(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    body = document["paths"]["/v1/completions"]["post"]["requestBody"]
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert "prompt" in document["components"]["schemas"][name]["properties"]


def test_a_gateway_at_work_holds_no_torch(gateway: RunningGateway, client: httpx.Client) -> None:
    assert client.post("/v1/completions", json=BODY).status_code == 200
    assert "libtorch" not in Path(f"/proc/{gateway.daemon.pid}/maps").read_text()


def test_a_stop_ends_what_is_open_and_frees_it(gateway: RunningGateway) -> None:
    flags = {"scheduler": gateway.scheduler.address, "port": 0, "shutdown_grace_s": 1}
    second = gateway.daemons.start("aegaeon.http", flags).wait_ready()
    long = {**BODY, "max_tokens": 20_000, "stream": True}
    with (
        httpx.Client(base_url=f"http://{second.address}", timeout=60) as client,
        client.stream("GET", "/v1/aegaeon/events") as events,
        client.stream("POST", "/v1/completions", json=long) as tokens,
    ):
        assert next(events.iter_lines())
        assert next(tokens.iter_lines())
        second.stop()
    gateway.until_idle()
    assert "Traceback" not in second.log.read_text(), second.log.read_text()


def test_it_outlives_a_scheduler(gateway: RunningGateway, client: httpx.Client) -> None:
    """Streams go on where they were. Last here, since the worker has to register again."""
    long = {**BODY, "max_tokens": 2_000}
    before = client.post("/v1/completions", json=long).json()["choices"][0]["text"]
    with (
        client.stream("POST", "/v1/completions", json={**long, "stream": True}) as stream,
        gateway.http() as other,
    ):
        lines = stream.iter_lines()
        text = text_of_line(next(lines))
        gateway.scheduler.kill()
        until(lambda: other.get("/ready").status_code == 503, START_S)
        assert gateway.get("/health") == {"status": "ok"}
        gateway.daemons.scheduler(gateway.scheduler.address)
        text += "".join(map(text_of_line, lines))
    assert text == before
    assert client.post("/v1/completions", json=long).json()["choices"][0]["text"] == before


def text_of_line(line: str) -> str:
    """Text of a line of a stream of completions."""
    data = line.removeprefix("data: ")
    return json.loads(data)["choices"][0]["text"] if data.startswith("{") else ""


def test_an_address_beyond_loopback_must_be_asked_for(daemons: Daemons) -> None:
    flags = {"scheduler": "127.0.0.1:1", "host": "0.0.0.0", "port": 0}
    said = daemons.start("aegaeon.http", flags).wait_failed()
    assert "--insecure-bind" in said
    assert "Traceback" not in said


def test_without_a_scheduler_every_answer_is_a_503(daemons: Daemons, run_folder: Path) -> None:
    flags = {"scheduler": f"unix:{run_folder}/nobody", "port": 0}
    daemon = daemons.start("aegaeon.http", flags).wait_ready()
    with httpx.Client(base_url=f"http://{daemon.address}", timeout=20) as client:
        assert client.get("/health").status_code == 200
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        for response in (
            client.get("/v1/models"),
            client.get("/v1/aegaeon/runtime"),
            client.get("/v1/aegaeon/events"),
            client.post("/v1/completions", json=BODY),
            client.post("/v1/completions", json={**BODY, "stream": True}),
        ):
            assert (response.status_code, code_of(response)) == (503, "unavailable")
            assert response.headers["retry-after"] == "1"
    daemon.stop()
    assert "Traceback" not in daemon.log.read_text()
