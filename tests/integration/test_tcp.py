"""Daemons over TCP: addresses, health, and who may have a place."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from aegaeon import LLMService
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import model_pb2
from tests.integration.daemons import Daemon, Daemons, running_daemons, until
from tests.integration.workload import ask, tiny_node, tokens_of

PROMPT = [5, 6, 7]
ANY_PORT = "127.0.0.1:0"


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory, shm_dir: Path
) -> Iterator[tuple[Daemons, Daemon, Daemon]]:
    """A scheduler and a worker on free ports."""
    with running_daemons(tmp_path_factory.mktemp("tcp"), shm_dir) as daemons:
        scheduler = daemons.scheduler(ANY_PORT)
        worker = daemons.worker(scheduler.address, listen=ANY_PORT).wait_ready()
        yield daemons, scheduler, worker


Started = tuple[Daemons, Daemon, Daemon]


def health(address: str, service: str = "") -> str:
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def services(address: str) -> set[str]:
    with grpc.insecure_channel(address) as channel:
        return set(ProtoReflectionDescriptorDatabase(channel).get_services())


def test_a_free_port_is_found_and_served(started: Started, tiny_models: list[ModelSpec]) -> None:
    _, scheduler, worker = started
    for daemon in (scheduler, worker):
        host, port = daemon.address.split(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
    with LLMService([tiny_node(tiny_models[:1])], address=scheduler.address) as service:
        assert len(tokens_of(service.serve([ask(tiny_models[0], PROMPT, 8)])[0])) == 8


def test_health_and_reflection_are_there_for_any_tool(started: Started) -> None:
    _, scheduler, worker = started
    own = {"InferenceService", "ModelService", "ClusterService"}
    for daemon, names in ((scheduler, own), (worker, {"WorkerService"})):
        listed = services(daemon.address)
        for name in {f"aegaeon.v1.{name}" for name in names}:
            assert name in listed
            assert health(daemon.address, name) == "SERVING"
        assert "grpc.health.v1.Health" in listed
        assert health(daemon.address) == "SERVING"


def test_health_of_an_unknown_service_is_not_found(started: Started) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        health(started[1].address, "aegaeon.v1.NoService")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_an_address_in_use_is_named(started: Started) -> None:
    daemons, scheduler, _ = started
    second = daemons.start("aegaeon_scheduler", {"listen": scheduler.address})
    said = second.wait_failed()
    assert f"cannot listen on {scheduler.address}" in said
    assert "in use" in said
    assert "Traceback" not in said


def test_a_port_of_another_program_is_not_taken(started: Started) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        said = started[0].start("aegaeon_scheduler", {"listen": address}).wait_failed()
    assert f"cannot listen on {address}" in said


def test_an_open_address_needs_the_operator_s_word(started: Started) -> None:
    daemons, scheduler, _ = started
    refused = [
        daemons.start("aegaeon_scheduler", {"listen": "0.0.0.0:0"}),
        daemons.worker(scheduler.address, listen="0.0.0.0:0", node_id="open", instance="open"),
    ]
    for daemon in refused:
        said = daemon.wait_failed()
        assert "--insecure-bind" in said
        assert "Traceback" not in said


def ready_models(service: LLMService) -> list[str]:
    return [
        model.spec.name
        for model in service.runtime().models
        if any(replica.state == model_pb2.REPLICA_STATE_READY for replica in model.replicas)
    ]


def test_the_later_worker_of_one_place_has_it(
    started: Started, tiny_models: list[ModelSpec]
) -> None:
    daemons, scheduler, earlier = started
    with LLMService(address=scheduler.address) as service:
        later = daemons.worker(scheduler.address, listen=ANY_PORT).wait_ready()
        said = earlier.wait_failed()
        assert f"process {later.pid} registered there later" in said
        assert "Traceback" not in said
        until(lambda: [info.pid for info in service.runtime().workers] == [later.pid])
        until(lambda: ready_models(service) == [tiny_models[0].name])
        [output] = service.serve([ask(tiny_models[0], PROMPT, 8)])
        assert len(tokens_of(output)) == 8
