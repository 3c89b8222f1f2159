"""A gateway with everything behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from openai import APIError, APIStatusError, AsyncOpenAI, OpenAI

from aegaeon.model_spec import ModelSpec
from tests.integration.daemons import Daemon, Daemons, running_daemons, until

HEARTBEAT_S = 0.05
MAX_BODY_BYTES = 8 << 20


@dataclass
class RunningGateway:
    daemons: Daemons
    scheduler: Daemon
    worker: Daemon
    daemon: Daemon

    @property
    def url(self) -> str:
        return f"http://{self.daemon.address}"

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def http_async(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=60)

    def openai(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def openai_async(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def active_requests(self) -> int:
        return int(self.get("/v1/aegaeon/runtime")["active_requests"])

    def worker_sequences(self) -> int:
        [worker] = self.get("/v1/aegaeon/runtime")["workers"]
        return int(worker["usage"]["sequences"])

    def get(self, path: str) -> Any:
        with self.http() as client:
            response = client.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    def until_idle(self) -> None:
        """No request is left, at the scheduler and at the worker."""
        until(lambda: self.active_requests() == 0 and self.worker_sequences() == 0)


@contextmanager
def refused(status: int) -> Iterator[list[APIError]]:
    """Catches the error that a request ends with, be it the status of its answer or, where the
    scheduler took longer than a second to refuse it, the last event of its stream; which has to be
    read in the block."""
    caught: list[APIError] = []
    try:
        yield caught
    except APIError as error:
        caught.append(error)
    assert caught, "nothing was refused"
    if isinstance(caught[0], APIStatusError):
        assert caught[0].status_code == status, caught[0]


@contextmanager
def running_gateway(
    folder: Path,
    shm_dir: Path,
    specs: Sequence[ModelSpec],
    worker_flags: Mapping[str, object] | None = None,
    **limits: object,
) -> Iterator[RunningGateway]:
    with running_daemons(folder, shm_dir) as daemons:
        scheduler = daemons.scheduler(**limits)
        gateway = daemons.start(
            "aegaeon.http",
            {
                "scheduler": scheduler.address,
                "port": 0,
                "heartbeat_s": HEARTBEAT_S,
                "max_body_bytes": MAX_BODY_BYTES,
            },
        )
        # An instance of its own: a gateway may run beside other services of the same tests.
        own = {"instance": folder.name, **(worker_flags or {})}
        worker = daemons.worker(scheduler.address, **own).wait_ready()
        running = RunningGateway(daemons, scheduler, worker, gateway.wait_ready())
        with running.http() as client:
            for spec in specs:
                body = {"model": spec.name, "path": spec.path(), "tool_parser": spec.tool_parser}
                response = client.post("/v1/models/deploy", json=body)
                assert response.json().get("ready") == ["node_0"], response.text
        yield running
        gateway.stop()
        # Nothing that the tests do is a fault of the gateway's own.
        assert "Traceback" not in gateway.log.read_text(), gateway.log.read_text()
