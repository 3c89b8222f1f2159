"""A stub scheduler in a thread, a service attached to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aegaeon import LLMService
from tests.client.stub_scheduler import StubState, make_server


class RunningStub:
    """A stub that can be stopped and started again at the same address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.state = StubState()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stub")
        self._thread.start()
        self.start()

    def start(self) -> None:
        async def start() -> None:
            self._server = make_server(self.state)
            self._server.add_insecure_port(self.address)
            await self._server.start()

        asyncio.run_coroutine_threadsafe(start(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(grace=0), self._loop).result(10)

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[RunningStub]:
    running = RunningStub(f"unix:{tmp_path}/s")
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def service(stub: RunningStub) -> Iterator[LLMService]:
    with LLMService(address=stub.address) as attached:
        yield attached


@pytest.fixture
def write_yaml(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return path

    return write
