"""The command as a process."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from aegaeon.v1 import cluster_pb2, inference_pb2, model_pb2


@contextmanager
def daemon(
    *flags: str, environment: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running scheduler and its address."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "aegaeon_scheduler", "--ready-fd", str(write), *flags],
        pass_fds=(write,),
        env={**os.environ, **(environment or {})},
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    try:
        with os.fdopen(read) as ready:
            line = ready.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)["address"]
    finally:
        process.terminate()
        try:
            process.communicate(timeout=10)
        finally:
            process.kill()
            process.communicate()


def test_it_serves_health_and_reflection_and_stops_on_sigterm(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with daemon("--listen", f"unix:{path}") as (process, address):
        with grpc.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            reflected = ProtoReflectionDescriptorDatabase(channel)
            names = set(reflected.get_services())
            pool = DescriptorPool(reflected)
            for file in (cluster_pb2, inference_pb2, model_pb2):
                for service in file.DESCRIPTOR.services_by_name.values():
                    request = health_pb2.HealthCheckRequest(service=service.full_name)
                    # Without an engine there are no tokens.
                    serves = service.name != "InferenceService"
                    assert health.Check(request).status == (
                        health_pb2.HealthCheckResponse.SERVING
                        if serves
                        else health_pb2.HealthCheckResponse.NOT_SERVING
                    )
                    assert service.full_name in names
                    found = pool.FindServiceByName(service.full_name)
                    assert set(found.methods_by_name) == set(service.methods_by_name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert not path.exists()


def test_a_sighup_ends_nothing(tmp_path: Path) -> None:
    with daemon("--listen", f"unix:{tmp_path}/s") as (process, address):
        process.send_signal(signal.SIGHUP)
        with grpc.insecure_channel(address) as channel:
            for _ in range(3):
                health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=5
                )
        assert process.poll() is None


def test_two_daemons_cannot_share_a_socket(tmp_path: Path) -> None:
    flags = ["--listen", f"unix:{tmp_path / 's'}"]
    with daemon(*flags):
        second = subprocess.run(
            [sys.executable, "-m", "aegaeon_scheduler", *flags],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert second.returncode != 0
    assert "in use" in second.stderr


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (["--listen", "0.0.0.0:0"], "--insecure-bind"),
        (["--listen", f"unix:/tmp/{'x' * 120}"], "shorten"),
        (["--lease-ttl-ms", "0"], "at least 1"),
    ],
)
def test_wrong_flags_are_answered(flags: list[str], hint: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aegaeon_scheduler", *flags],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode != 0
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_the_service_manager_is_told(tmp_path: Path) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = tmp_path / "notify"
    manager.bind(str(path))
    manager.settimeout(10)
    environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"}
    with manager, daemon("--listen", "127.0.0.1:0", environment=environment) as (process, _):
        told = {manager.recv(100) for _ in range(3)}
        assert told == {b"READY=1", b"WATCHDOG=1"}
        process.terminate()
        while manager.recv(100) != b"STOPPING=1":
            pass
        assert process.wait(10) == 0
    path.unlink()  # the kernel leaves it


def test_an_idle_daemon_uses_under_one_percent_of_a_core() -> None:
    with daemon("--listen", "127.0.0.1:0") as (process, _):
        time.sleep(0.5)  # its start is over
        before = _cpu_s(process.pid)
        time.sleep(2)
        assert _cpu_s(process.pid) - before <= 0.02


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_where_it_hung_is_told_when_a_watchdog_ends_it() -> None:
    with daemon("--listen", "127.0.0.1:0") as (process, _):
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        process.send_signal(signal.SIGABRT)
        assert process.wait(10) == -signal.SIGABRT
        assert process.stderr is not None
        said = process.stderr.read()
    assert "Fatal Python error: Aborted" in said
    assert "in run_daemon" in said
