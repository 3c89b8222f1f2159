"""What a worker makes of the scheduler that it registers with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from aegaeon.capability import NO_CAPABILITIES, OF_SCHEDULER, Capabilities
from aegaeon.errors import ErrorReason
from aegaeon.rpc.channel import make_server
from aegaeon.rpc.needs import contract_names
from aegaeon.rpc.version import CONTRACT_VERSION
from aegaeon.security.settings import PLAIN
from aegaeon.v1 import cluster_pb2, cluster_pb2_grpc
from aegaeon_worker.service.registration import Registration


class StubScheduler(cluster_pb2_grpc.ClusterServiceServicer):
    """Registers everybody, and says that it is of some version."""

    def __init__(self, version: int, capabilities: Capabilities) -> None:
        self._version, self._capabilities = version, capabilities
        self.renewed = asyncio.Event()

    async def RegisterWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
        return cluster_pb2.RegisterWorkerResponse(
            epoch=1,
            lease_ttl_ns=60_000_000,
            contract_version=self._version,
            capabilities=contract_names(self._capabilities),
        )

    async def RenewLease(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.renewed.set()
        return cluster_pb2.RenewLeaseResponse(lease_ttl_ns=60_000_000)

    async def DeregisterWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
        return cluster_pb2.DeregisterWorkerResponse()


Register = Callable[..., Awaitable[tuple[StubScheduler, Registration]]]


@pytest.fixture
async def register() -> AsyncIterator[Register]:
    closers: list[Callable[[], Awaitable[object]]] = []

    async def run(
        version: int, capabilities: Capabilities = NO_CAPABILITIES, ranks: int = 0
    ) -> tuple[StubScheduler, Registration]:
        scheduler, server = StubScheduler(version, capabilities), make_server()
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(scheduler, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        registration = Registration(
            f"127.0.0.1:{port}",
            cluster_pb2.RegisterWorkerRequest(tensor_parallel_size=ranks),
            PLAIN,
            5.0,
        )
        closers.extend([lambda: server.stop(0), registration.close])
        return scheduler, registration

    yield run
    for close in reversed(closers):
        await close()


@pytest.mark.parametrize("version", [0, CONTRACT_VERSION, CONTRACT_VERSION + 1])
async def test_a_scheduler_of_a_neighbouring_version_is_fine(
    register: Register, version: int
) -> None:
    """0 is what releases say that did not tell their version yet."""
    scheduler, registration = await register(version)
    async with asyncio.timeout(10):
        await scheduler.renewed.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(registration.wait_refused(), 0.05)


async def test_a_worker_ends_when_its_scheduler_is_too_new(register: Register) -> None:
    _, registration = await register(CONTRACT_VERSION + 2)
    async with asyncio.timeout(10):
        error = await registration.wait_refused()
    assert error.reason is ErrorReason.CONTRACT_MISMATCH
    assert "the scheduler speaks contract version" in str(error)


async def test_a_rank_of_an_engine_ends_when_its_scheduler_knows_no_such_engines(
    register: Register,
) -> None:
    """It would be taken for an engine of its own."""
    _, registration = await register(CONTRACT_VERSION, ranks=2)
    async with asyncio.timeout(10):
        error = await registration.wait_refused()
    assert error.reason is ErrorReason.FEATURE_MISSING
    assert "TENSOR_PARALLELISM" in str(error)


async def test_a_rank_serves_where_its_scheduler_knows_such_engines(register: Register) -> None:
    scheduler, _ = await register(CONTRACT_VERSION, OF_SCHEDULER, ranks=2)
    async with asyncio.timeout(10):
        await scheduler.renewed.wait()
