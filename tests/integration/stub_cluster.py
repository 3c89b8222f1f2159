"""A gateway in front of a scheduler whose worker computes nothing: for what only they do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aegaeon.rpc.channel import open_channel
from aegaeon_scheduler.config import DaemonConfig
from aegaeon_scheduler.service.server import SchedulerServer
from tests.integration.daemons import Daemon, running_daemons
from tests.scheduler.conftest import Harness, until
from tests.scheduler.stub_settings import StubSettings

MODEL = "stub"


@dataclass
class StubCluster:
    harness: Harness
    gateway: Daemon

    @property
    def host(self) -> str:
        return self.gateway.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.gateway.address.rpartition(":")[2])

    async def settled(self) -> None:
        """No request is left at the scheduler and at the worker; the gateway's session stays."""
        core = self.harness.server.driver.cluster
        [worker] = self.harness.workers
        engines = core.state.engines.values()
        await until(lambda: not core.state.sequences and not worker.sequences, 30)
        await until(lambda: not any(engine.ending for engine in engines), 30)
        assert core.audit() == []


@asynccontextmanager
async def stub_cluster(
    folder: Path, shm_dir: Path, tokenizer: str, settings: StubSettings
) -> AsyncIterator[StubCluster]:
    """Scheduler and worker in this process, the gateway in one of its own; ``tokenizer`` is the
    folder of a model's, which makes text of some of the stub's tokens."""
    config = DaemonConfig(listen="127.0.0.1:0", shutdown_grace_s=0.2, rejoin_window_ns=0)
    server = SchedulerServer(config)
    address = await server.start()
    harness = Harness(server, address, open_channel(address))
    try:
        await harness.worker(settings)
        await harness.deploy(MODEL, path=tokenizer)
        with running_daemons(folder, shm_dir) as daemons:
            gateway = daemons.start("aegaeon.http", {"scheduler": address, "port": 0})
            yield StubCluster(harness, gateway.wait_ready())
            gateway.stop()
            assert "Traceback" not in gateway.log.read_text(), gateway.log.read_text()
    finally:
        for worker in harness.workers:
            await worker.kill()
        await harness.channel.close()
        await server.stop()
