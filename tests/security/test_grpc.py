"""Who gets through to a scheduler over gRPC: certificates, tokens, scopes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aegaeon.cli.app import main
from aegaeon.client.connection import Connection
from aegaeon.client.session import Session
from aegaeon.errors import (
    ConfigError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)
from aegaeon.rpc.address import bind
from aegaeon.rpc.channel import make_server, open_channel
from aegaeon.rpc.key_check import scope_of
from aegaeon.security.key_file import changing_keys
from aegaeon.security.keys import Scope, make_key
from aegaeon.security.settings import PLAIN, SecuritySettings
from aegaeon.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    kv_pb2,
    model_pb2,
    worker_pb2,
)
from aegaeon_scheduler.config import DaemonConfig
from aegaeon_scheduler.service.server import SchedulerServer
from tests.security.certificates import Authority, Certificate
from tests.security.makers import make_text

LOOPBACK = "127.0.0.1:0"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def server_pair(authority: Authority) -> Certificate:
    return authority.sign("server")


def tls(authority: Authority, pair: Certificate | None, **more: Any) -> SecuritySettings:
    cert, key = (None, None) if pair is None else (pair.cert, pair.key)
    return SecuritySettings(tls_ca=authority.ca, tls_cert=cert, tls_key=key, **more)


Start = Callable[[SecuritySettings], Awaitable[str]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts schedulers with the given settings; returns their addresses."""
    servers: list[SchedulerServer] = []

    async def run(security: SecuritySettings) -> str:
        config = DaemonConfig(
            listen=LOOPBACK, security=security, shutdown_grace_s=0.1, rejoin_window_ns=0
        )
        server = SchedulerServer(config)
        servers.append(server)
        return await server.start()

    yield run
    for server in servers:
        await server.stop()


async def connect(address: str, security: SecuritySettings, timeout_s: float = 20.0) -> Connection:
    connection = Connection(address, security)
    try:
        await connection.wait_connected(timeout_s)
    except BaseException:
        await connection.close()
        raise
    return connection


async def answers(address: str, security: SecuritySettings) -> bool:
    """Whether a scheduler serves this client. Raises what it answers instead."""
    await (await connect(address, security)).close()
    return True


async def cannot_connect(
    address: str, security: SecuritySettings, match: str | None = None
) -> None:
    """No connection comes about."""
    with pytest.raises(UnavailableError, match=match):
        await connect(address, security, 1.0)


def with_token(settings: SecuritySettings, folder: Path, token: str) -> SecuritySettings:
    file = folder / f"token-{token[4:16]}"
    file.write_text(token + "\n")
    return dataclasses.replace(settings, token_file=file)


async def test_mutual_tls_admits_friends_and_nobody_else(
    start: Start, authority: Authority, stranger: Authority, server_pair: Certificate
) -> None:
    address = await start(tls(authority, server_pair))
    friend = tls(authority, authority.sign("friend"))
    assert await answers(address, friend)
    for outsider in (
        PLAIN,
        tls(authority, None),
        tls(authority, stranger.sign("fake")),
        tls(stranger, stranger.sign("fake")),
    ):
        await cannot_connect(address, outsider, r"Socket closed|[Hh]andshake")


async def test_a_server_that_pretends_is_not_spoken_to(
    start: Start, authority: Authority, stranger: Authority
) -> None:
    address = await start(
        dataclasses.replace(tls(stranger, stranger.sign("server")), tls_any_client=True)
    )
    await cannot_connect(address, tls(authority, None))


async def test_the_name_of_a_certificate_counts(start: Start, authority: Authority) -> None:
    pair = authority.sign("elsewhere", "subjectAltName=DNS:scheduler.example")
    address = await start(dataclasses.replace(tls(authority, pair), tls_any_client=True))
    await cannot_connect(address, tls(authority, None))
    named = tls(authority, None, tls_server_name="scheduler.example")
    assert await answers(address, named)


async def test_a_renewed_certificate_is_shown_without_a_restart(
    start: Start, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    old, new = authority.sign("old"), stranger.sign("new")
    live = Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    shutil.copy(old.cert, live.cert)
    shutil.copy(old.key, live.key)
    address = await start(tls(authority, live, tls_any_client=True))
    assert await answers(address, tls(authority, None))
    shutil.copy(new.cert, live.cert)  # half of a renewal: the earlier pair is shown
    assert await answers(address, tls(authority, None))
    shutil.copy(new.key, live.key)
    assert await answers(address, tls(stranger, None))
    await cannot_connect(address, tls(authority, None))


async def test_a_client_shows_its_renewed_certificate_when_it_dials_again(
    start: Start, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.ca.read_bytes())
    pair = authority.sign("s")
    server = SecuritySettings(tls_ca=trusted, tls_cert=pair.cert, tls_key=pair.key)
    address = await start(server)
    live = Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    _copy(authority.sign("first"), live)
    connection = await connect(address, tls(authority, live))
    stub = health_pb2_grpc.HealthStub(connection.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    # Only certificates of the other authority are taken from now on.
    trusted.write_bytes(stranger.ca.read_bytes())
    _copy(stranger.sign("second"), live)
    await connection.list_models()
    assert not watch.done()
    _copy(authority.sign("third"), live)
    with pytest.raises(UnavailableError):
        await connection.list_models()
    await connection.close()


def _copy(source: Certificate, target: Certificate) -> None:
    shutil.copy(source.cert, target.cert)
    shutil.copy(source.key, target.key)


async def test_tokens_are_asked_for_and_scopes_hold(
    start: Start, authority: Authority, server_pair: Certificate, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    texts = {scope: make_text(keys, scope) for scope in Scope}
    server = tls(authority, server_pair, keys_file=keys, tls_any_client=True)
    address = await start(server)
    client = tls(authority, None)
    with pytest.raises(UnauthenticatedError, match="no key was given"):
        await answers(address, client)
    with pytest.raises(UnauthenticatedError, match="wrong or has been revoked"):
        await answers(address, with_token(client, tmp_path, make_key().text))
    with pytest.raises(PermissionDeniedError, match="generate"):
        await answers(address, with_token(client, tmp_path, texts[Scope.CLUSTER]))
    generate = await connect(address, with_token(client, tmp_path, texts[Scope.GENERATE]))
    for call in (generate.runtime(), generate.undeploy("m"), generate.reset_statistics()):
        with pytest.raises(PermissionDeniedError):
            await call
    await generate.close()
    admin = await connect(address, with_token(client, tmp_path, texts[Scope.ADMIN]))
    await admin.runtime()
    with pytest.raises(NotFoundError):
        await admin.undeploy("m")
    stub = cluster_pb2_grpc.ClusterServiceStub(admin.channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.RegisterWorker(cluster_pb2.RegisterWorkerRequest())
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    await admin.close()


async def test_health_needs_no_key(start: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    make_text(keys, Scope.ADMIN)
    address = await start(SecuritySettings(keys_file=keys))
    async with open_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_probe_speaks_tls_and_tells_by_its_exit_status(
    start: Start,
    authority: Authority,
    server_pair: Certificate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = tmp_path / "keys.json"
    make_text(keys, Scope.ADMIN)
    address = await start(tls(authority, server_pair, keys_file=keys))

    async def probe(*arguments: str) -> int:
        return await asyncio.to_thread(main, ["probe", address, *arguments])

    assert await probe("--timeout-s", "1") == await probe("--live", "--timeout-s", "1") == 1
    for name, file in (("CA", authority.ca), ("CERT", server_pair.cert), ("KEY", server_pair.key)):
        monkeypatch.setenv(f"AEGAEON_TLS_{name}", str(file))
    capsys.readouterr()
    assert await probe() == 0
    assert capsys.readouterr().out == "SERVING\n"
    # There is no engine, so nobody gets tokens.
    assert await probe("--service", "aegaeon.v1.InferenceService") == 1
    assert "NOT_SERVING" in capsys.readouterr().err
    # Who restarts daemons is not to restart those that serve nobody at the moment.
    assert await probe("--service", "aegaeon.v1.InferenceService", "--live") == 0
    assert capsys.readouterr().out == "NOT_SERVING\n"


async def test_a_session_is_refused_before_its_first_message(start: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    make_text(keys, Scope.GENERATE)
    address = await start(SecuritySettings(keys_file=keys))
    async with open_channel(address) as channel:
        session = Session(channel)
        pending = session.submit(inference_pb2.GenerateRequest(model="m", prompt_token_ids=[1]))
        with pytest.raises(UnauthenticatedError):
            await asyncio.wait_for(pending.result(), 5)
        await session.close()


async def test_models_and_limits_hold_within_a_session(start: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    text = make_text(keys, Scope.GENERATE, models=("mine",), requests_per_minute=1)
    address = await start(SecuritySettings(keys_file=keys))
    settings = with_token(PLAIN, tmp_path, text)
    async with open_channel(address, settings) as channel:
        session = Session(channel)

        async def outcome(model: str) -> Exception | None:
            pending = session.submit(
                inference_pb2.GenerateRequest(
                    model=model,
                    prompt_token_ids=[1],
                    stop=inference_pb2.StopConditions(max_new_tokens=1),
                )
            )
            try:
                await asyncio.wait_for(pending.result(), 5)
            except Exception as error:
                return error
            return None

        assert isinstance(await outcome("other"), PermissionDeniedError)
        assert isinstance(await outcome("mine"), NotFoundError)  # let in, and not deployed
        assert isinstance(await outcome("mine"), ResourceExhaustedError)
        with changing_keys(keys) as table:
            table.clear()
        assert isinstance(await outcome("mine"), UnauthenticatedError)
        await session.close()


async def test_callers_of_different_names_share_no_budget(start: Start, tmp_path: Path) -> None:
    """So that nobody can use up what others have."""
    keys = tmp_path / "keys.json"
    names = ("gateway", "gateway", "application")
    texts = [make_text(keys, Scope.GENERATE, name=name) for name in names]
    address = await start(SecuritySettings(keys_file=keys))
    use = inference_pb2.UseBudgetRequest(holder="h", requests_per_minute=1, requests=1)
    outcomes = []
    for number, text in enumerate(texts):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with open_channel(address, with_token(PLAIN, folder, text)) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            try:
                await stub.UseBudget(use)
                outcomes.append(grpc.StatusCode.OK)
            except grpc.aio.AioRpcError as error:
                outcomes.append(error.code())
    full = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert outcomes == [grpc.StatusCode.OK, full, grpc.StatusCode.OK]


async def test_a_token_file_is_read_again(start: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    first, second = make_text(keys, Scope.GENERATE), make_text(keys, Scope.GENERATE)
    address = await start(SecuritySettings(keys_file=keys))
    token = tmp_path / "token"
    token.write_text(first)
    connection = await connect(address, SecuritySettings(token_file=token))
    with changing_keys(keys) as table:
        del table[first.split("_")[1]]
    with pytest.raises(UnauthenticatedError):
        await connection.list_models()
    token.write_text(second + "\n")
    await connection.list_models()
    await connection.close()


async def test_secrets_are_in_no_log(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keys = tmp_path / "keys.json"
    good, bad = make_text(keys, Scope.GENERATE), make_key().text
    address = await start(SecuritySettings(keys_file=keys))
    await answers(address, with_token(PLAIN, tmp_path, good))
    with pytest.raises(UnauthenticatedError) as caught:
        await answers(address, with_token(PLAIN, tmp_path, bad))
    for key in (good, bad):
        secret = key.split("_", 2)[2]
        assert secret not in caplog.text
        assert secret not in str(caught.value)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
async def test_open_addresses_need_encryption_and_a_question(
    authority: Authority, server_pair: Certificate, tmp_path: Path, listen: str
) -> None:
    keys = tmp_path / "keys.json"
    make_text(keys, Scope.ADMIN)
    mutual = tls(authority, server_pair)
    anyone = dataclasses.replace(mutual, tls_any_client=True)
    only_keys = SecuritySettings(keys_file=keys)
    for settings, words in (
        (PLAIN, "not encrypted.*nobody is asked"),
        (anyone, "nobody is asked"),
        (only_keys, "not encrypted"),
    ):
        server = make_server(settings)
        with pytest.raises(ConfigError, match=words):
            bind(server, listen, insecure_bind=False, settings=settings)
        await server.stop(None)
    for settings in (mutual, dataclasses.replace(anyone, keys_file=keys)):
        server = make_server(settings)
        assert bind(server, listen, insecure_bind=False, settings=settings)
        await server.stop(None)


def test_every_method_has_the_scope_of_its_kind() -> None:
    methods: list[MethodDescriptor] = [
        method
        for file in (cluster_pb2, inference_pb2, kv_pb2, model_pb2, worker_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    scopes = {f"/{m.containing_service.full_name}/{m.name}" for m in methods}
    found = {method: scope_of(method) for method in scopes}
    assert None not in found.values()
    reads = {method.rpartition("/")[2] for method, s in found.items() if s is Scope.OBSERVE}
    assert reads == {"GetRuntime", "WatchEvents"}
    cluster = {method.rpartition("/")[2] for method, s in found.items() if s is Scope.CLUSTER}
    own = {"RegisterWorker", "RenewLease", "DeregisterWorker"}
    assert cluster == own | {"Execute", "InspectModel", "GetStatus", "ReadKv"}
    assert scope_of("/anything/Else") is Scope.ADMIN
