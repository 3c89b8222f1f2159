"""A scheduler on a free port, stub workers, and a client channel; all of them end with the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from aegaeon.rpc.channel import channel_options, open_channel
from aegaeon.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)
from aegaeon_scheduler.config import DaemonConfig
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.service.server import SchedulerServer
from tests.scheduler.stub_settings import StubSettings
from tests.scheduler.stub_worker import StubWorker


class Harness:
    """Everything that a test of the daemon talks to."""

    def __init__(self, server: SchedulerServer, address: str, channel: grpc.aio.Channel) -> None:
        self.server = server
        self.address = address
        self.channel = channel
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self.models = model_pb2_grpc.ModelServiceStub(channel)
        self.cluster = cluster_pb2_grpc.ClusterServiceStub(channel)
        self.workers: list[StubWorker] = []

    async def worker(
        self, settings: StubSettings | None = None, serving: StubWorker | None = None
    ) -> StubWorker:
        """Start a worker; with ``serving``, one that has that one's models loaded."""
        worker = StubWorker(self.address, settings)
        worker.models.update(serving.models if serving else {})
        # Also one that is refused: a server that nobody stops hangs gRPC once it is collected.
        self.workers.append(worker)
        await worker.start()
        state = self.server.driver.cluster.state
        await until(lambda: any(e.ready for e in state.engines.values() if e.epoch == worker.epoch))
        return worker

    async def deploy(
        self, name: str = "m", *, path: str = "", **fields: object
    ) -> list[model_pb2.DeployModelResponse]:
        request = model_pb2.DeployModelRequest(
            spec=model_pb2.ModelSpec(name=name, path=path or f"/models/{name}"), **fields
        )
        return [message async for message in self.models.DeployModel(request)]

    async def runtime(self) -> cluster_pb2.RuntimeSnapshot:
        answer = await self.cluster.GetRuntime(cluster_pb2.GetRuntimeRequest())
        return answer.snapshot

    def assert_empty(self) -> None:
        """No trace of any request is left in the ledgers."""
        cluster = self.server.driver.cluster
        assert cluster.audit() == []
        assert not cluster.state.sequences
        assert not self.server.driver.readers
        assert all(not engine.sequences for engine in cluster.state.engines.values())

    async def settled(self) -> None:
        """Wait until no trace of any request is left, on workers neither."""
        state = self.server.driver.cluster.state
        await until(lambda: not state.sequences)
        await until(lambda: not any(e.ending for e in state.engines.values()))
        await until(lambda: not any(w.sequences for w in self.workers))
        self.assert_empty()


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for a condition; fails the test after ``timeout_s``."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - conditions are plain state
            await asyncio.sleep(0.005)


def narrow_channel(harness: Harness) -> grpc.aio.Channel:
    """A channel with a small fixed window, so that a test need not fill megabytes before the
    writes of a call that nobody reads block."""
    options = [
        *channel_options(),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 1024),
    ]
    return grpc.aio.insecure_channel(harness.address, options=options)


Start = Callable[..., Awaitable[Harness]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts schedulers with the given core settings."""
    started: list[Harness] = []

    async def run(
        lease_ttl_ns: int = 10_000_000_000,
        state_file: Path | None = None,
        metrics_listen: str | None = None,
        rejoin_window_ns: int = 0,
        **core: Any,
    ) -> Harness:
        config = DaemonConfig(
            listen="127.0.0.1:0",
            lease_ttl_ns=lease_ttl_ns,
            rejoin_window_ns=rejoin_window_ns,
            shutdown_grace_s=0.2,
            state_file=state_file,
            metrics_listen=metrics_listen,
            core=CoreConfig(**core),
        )
        server = SchedulerServer(config)
        address = await server.start()
        started.append(Harness(server, address, open_channel(address)))
        return started[-1]

    yield run
    for harness in started:
        for worker in harness.workers:
            await worker.kill()
        await harness.channel.close()
        await harness.server.stop()


@pytest.fixture
async def scheduler(start: Start) -> Harness:
    """A scheduler with one worker and the model ``m``."""
    harness = await start()
    await harness.worker()
    await harness.deploy()
    return harness
