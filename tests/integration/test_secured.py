"""All parts over TCP with mutual TLS and keys, as on several machines."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AuthenticationError, OpenAI, PermissionDeniedError, RateLimitError

from aegaeon import LLMService
from aegaeon.errors import PermissionDeniedError as Denied
from aegaeon.model_spec import ModelSpec
from aegaeon.security.key_file import changing_keys
from aegaeon.security.keys import Scope, make_key
from aegaeon.security.settings import SecuritySettings
from tests.integration.daemons import Daemon, Daemons, running_daemons, until
from tests.integration.text_model import text_model
from tests.integration.workload import ask, tokens_of
from tests.security.certificates import Authority, Certificate
from tests.security.makers import make_text

ANY_PORT = "127.0.0.1:0"
BODY = {"model": "m", "prompt": "hello", "max_tokens": 4, "ignore_eos": True}


@dataclass
class Secured:
    folder: Path
    authority: Authority
    keys: Path
    daemons: Daemons
    scheduler: Daemon
    gateway: Daemon
    gateway_flags: dict[str, object]
    texts: list[str] = field(default_factory=list)

    def key(self, *scopes: Scope, **limits: Any) -> str:
        text = make_text(self.keys, *scopes, **limits)
        self.texts.append(text)
        return text

    def http(self, key: str | None = None, gateway: Daemon | None = None) -> httpx.Client:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        url = f"https://{(gateway or self.gateway).address}"
        return httpx.Client(base_url=url, verify=context, headers=headers, timeout=60)

    def openai(self, key: str) -> OpenAI:
        return OpenAI(
            base_url=f"https://{self.gateway.address}/v1",
            api_key=key,
            http_client=self.http(),
            max_retries=0,
        )

    def client(self, key: str) -> SecuritySettings:
        token = self.folder / f"token-{len(self.texts)}"
        token.write_text(key)
        pair = self.authority.sign("client")
        return SecuritySettings(
            tls_ca=self.authority.ca, tls_cert=pair.cert, tls_key=pair.key, token_file=token
        )


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return text_model("m", tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def secured(
    spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory, shm_dir: Path
) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("sec")
    authority = Authority(folder)
    keys = folder / "keys.json"
    texts = {
        "parts": make_text(keys, Scope.CLUSTER),
        "gateway": make_text(keys, Scope.ADMIN, name="gateway"),
    }
    for name, text in texts.items():
        (folder / name).write_text(text + "\n")

    def flags(pair: Certificate, token: str | None) -> dict[str, object]:
        given = {"tls_cert": pair.cert, "tls_key": pair.key, "tls_ca": authority.ca}
        return given | ({} if token is None else {"token_file": folder / token})

    pairs = {name: authority.sign(name) for name in ("scheduler", "worker", "gateway", "https")}
    with running_daemons(folder, shm_dir) as daemons:
        scheduler = daemons.scheduler(
            ANY_PORT, keys_file=keys, **flags(pairs["scheduler"], "parts")
        )
        gateway_flags = {
            "scheduler": scheduler.address,
            "port": 0,
            "keys_file": keys,
            "https_cert": pairs["https"].cert,
            "https_key": pairs["https"].key,
            **flags(pairs["gateway"], "gateway"),
        }
        gateway = daemons.start("aegaeon.http", gateway_flags)
        daemons.worker(
            scheduler.address,
            listen=ANY_PORT,
            instance=folder.name,
            keys_file=keys,
            model_root=Path(spec.path()).parent,
            **flags(pairs["worker"], "parts"),
        ).wait_ready()
        gateway.wait_ready()
        running = Secured(folder, authority, keys, daemons, scheduler, gateway, gateway_flags)
        running.texts += texts.values()
        with running.http(running.key(Scope.ADMIN)) as client:
            until(lambda: client.get("/ready").status_code == 200)
            answer = client.post("/v1/models/deploy", json={"model": "m", "path": spec.path()})
            assert answer.json().get("ready") == ["node_0"], answer.text
        yield running
        for log in folder.glob("*.log"):
            text = log.read_text()
            assert "Traceback" not in text, text
            for key in running.texts:
                assert key.split("_", 2)[2] not in text


def error_of(response: httpx.Response) -> dict[str, Any]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    return dict(error)


def test_a_key_that_may_generates_over_https(secured: Secured) -> None:
    client = secured.openai(secured.key(Scope.GENERATE))
    answer = client.completions.create(model="m", prompt="hello", max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens >= 1
    stream = client.completions.create(model="m", prompt="hello", max_tokens=4, stream=True)
    assert list(stream)
    assert [model.id for model in client.models.list()] == ["m"]


def test_strangers_are_told_so_in_openai_s_shape(secured: Secured) -> None:
    for key in (None, "sk-nothing", make_key().text):
        with secured.http(key) as client:
            for response in (
                client.post("/v1/completions", json=BODY),
                client.get("/v1/models"),
                client.get("/v1/aegaeon/runtime"),
                client.post("/v1/models/deploy", json={"model": "x"}),
                client.get("/nowhere"),
            ):
                assert response.status_code == 401
                assert error_of(response)["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
            assert client.get("/health").status_code == 200
            assert client.get("/ready").status_code == 200
    with pytest.raises(AuthenticationError):
        secured.openai("sk-nothing").models.list()


def test_a_key_opens_what_it_is_for_and_nothing_else(secured: Secured) -> None:
    with secured.http(secured.key(Scope.GENERATE)) as client:
        for response in (
            client.get("/v1/aegaeon/runtime"),
            client.post("/v1/models/deploy", json={"model": "m"}),
            client.post("/v1/models/undeploy", json={"model": "m"}),
        ):
            assert response.status_code == 403
            assert error_of(response)["code"] == "permission_denied"
    with secured.http(secured.key(Scope.OBSERVE)) as client:
        assert client.get("/v1/aegaeon/runtime").status_code == 200
        assert client.post("/v1/completions", json=BODY).status_code == 403


def test_models_that_a_key_may_not_use_are_not_told_of(secured: Secured) -> None:
    key = secured.key(Scope.GENERATE, models=("other*",))
    with pytest.raises(PermissionDeniedError, match="may not use model 'm'"):
        secured.openai(key).completions.create(model="m", prompt="hello", max_tokens=1)
    with secured.http(key) as client:
        assert client.get("/v1/models").json()["data"] == []
        for response in (
            client.get("/v1/models/m"),
            client.get("/v1/models/unknown"),
            client.post("/tokenize", json={"model": "m", "prompt": "hello"}),
        ):
            assert response.status_code == 403


def test_limits_are_answered_with_429_and_when_to_come_back(secured: Secured) -> None:
    key = secured.key(Scope.GENERATE, requests_per_minute=2)
    client = secured.openai(key)
    for _ in range(2):
        client.completions.create(model="m", prompt="hello", max_tokens=1)
    with pytest.raises(RateLimitError) as caught:
        client.completions.create(model="m", prompt="hello", max_tokens=1)
    assert "2 requests per minute" in str(caught.value)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30


def test_generated_tokens_count_against_a_key(secured: Secured) -> None:
    key = secured.key(Scope.GENERATE, tokens_per_minute=40)
    for stream in (False, True):
        with secured.http(key) as client:
            body = {**BODY, "max_tokens": 40, "stream": stream}
            response = client.post("/v1/completions", json=body)
            assert response.status_code == (200 if not stream else 429), response.text
    assert error_of(response)["code"] == "rate_limit_exceeded"


def test_a_key_has_its_limits_once_however_many_gateways_there_are(secured: Secured) -> None:
    other = secured.daemons.start("aegaeon.http", secured.gateway_flags).wait_ready()
    by_requests = secured.key(Scope.GENERATE, requests_per_minute=1)
    by_tokens = secured.key(Scope.GENERATE, tokens_per_minute=4)  # makes up for 80 in 20 minutes
    for key in (by_requests, by_tokens):
        begin, statuses = time.monotonic(), []
        for gateway in (other, secured.gateway, other):
            with secured.http(key, gateway) as client:
                response = client.post("/v1/completions", json={**BODY, "max_tokens": 80})
                statuses.append(response.status_code)
        minutes = (time.monotonic() - begin) / 60
        assert statuses[0] == 200
        assert statuses.count(200) <= 1 + minutes, statuses
        assert set(statuses) == {200, 429}
    other.stop()


def test_holders_of_keys_cannot_tell_what_others_have_asked(secured: Secured) -> None:
    prompt = "the same words again and again " * 4
    body = {**BODY, "prompt": prompt}

    def found(key: str) -> int:
        with secured.http(key) as client:
            usage = client.post("/v1/completions", json=body).json()["usage"]
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    first = secured.key(Scope.GENERATE, name="first")
    found(first)
    assert found(first) > 0
    assert found(secured.key(Scope.GENERATE, name="second")) == 0


def test_a_revoked_key_is_refused_at_once(secured: Secured) -> None:
    key = secured.key(Scope.GENERATE)
    with secured.http(key) as client:
        assert client.get("/v1/models").status_code == 200
        with changing_keys(secured.keys) as table:
            del table[key.split("_")[1]]
        assert client.get("/v1/models").status_code == 401


def test_plain_http_and_other_authorities_do_not_get_through(secured: Secured) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{secured.gateway.address}/health", timeout=10)
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(f"https://{secured.gateway.address}/health", timeout=10)


def test_a_service_attaches_with_certificate_and_token(secured: Secured) -> None:
    settings = secured.client(secured.key(Scope.GENERATE))
    with LLMService(address=secured.scheduler.address, security=settings) as service:
        [output] = service.serve([ask("m", [5, 6, 7], 8)])
        assert len(tokens_of(output)) == 8
        with pytest.raises(Denied):
            service.runtime()


def test_folders_and_code_that_workers_refuse_cannot_be_deployed(
    secured: Secured, tmp_path: Path
) -> None:
    with secured.http(secured.key(Scope.ADMIN)) as client:
        for path, status, words in (
            (str(tmp_path), 403, "--model-root"),
            ("/etc", 403, "--model-root"),
            (f"{tmp_path}/../{tmp_path.name}", 400, ".."),
        ):
            response = client.post("/v1/models/deploy", json={"model": "x", "path": path})
            assert (response.status_code, words in response.text) == (status, True), response.text
        for name in ("../../etc", "a/../b", "/etc", "a\n"):
            body = {"model": name, "path": str(tmp_path)}
            response = client.post("/v1/models/deploy", json=body)
            assert response.status_code == 400, response.text
    settings = secured.client(secured.key(Scope.ADMIN))
    with LLMService(address=secured.scheduler.address, security=settings) as service:
        folder = Path(service.runtime().models[0].spec.path)
        code = ModelSpec("coded", str(folder), trust_remote_code=True)
        with pytest.raises(Denied, match="--allow-remote-code"):
            asyncio.run(service.deploy_model_replicas(code))


def test_a_runtime_shows_no_secret(secured: Secured) -> None:
    with secured.http(secured.key(Scope.OBSERVE)) as client:
        text = json.dumps(client.get("/v1/aegaeon/runtime").json())
    assert not any(key.split("_", 2)[2] in text for key in secured.texts)
