"""Every process of a cluster is restarted, one after another, while clients go on asking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from aegaeon.cli.app import main
from aegaeon.model_spec import ModelSpec
from tests.integration.daemons import START_S, Daemon, Daemons, until
from tests.integration.text_model import text_model

CLIENTS = 3
BODY = {
    "model": "m",
    "prompt": "hello",
    "max_tokens": 150,
    "ignore_eos": True,
    "temperature": 0,
    "return_token_ids": True,
}


class Load:
    """Clients that ask the same again and again, and take nothing but the right answer."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopping = False
        self.answers: list[list[int]] = []
        self.problems: list[str] = []

    async def ask(self, client: httpx.AsyncClient) -> list[int]:
        response = await client.post("/v1/completions", json=BODY)
        if response.status_code != 200:
            self.problems.append(f"{response.status_code}: {response.text}")
            return []
        tokens: list[int] = response.json()["choices"][0]["token_ids"]
        return tokens

    async def run(self, disturb: Callable[[Load], object]) -> None:
        """Let clients ask until ``disturb``, in a thread, has returned."""
        async with httpx.AsyncClient(base_url=self._url, timeout=120) as client:
            clients = [asyncio.create_task(self._go_on(client)) for _ in range(CLIENTS)]
            try:
                await asyncio.to_thread(disturb, self)
            finally:
                self._stopping = True
                await asyncio.gather(*clients)

    async def _go_on(self, client: httpx.AsyncClient) -> None:
        while not self._stopping:
            self.answers.append(await self.ask(client))


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return text_model("m", tmp_path_factory.mktemp("text"))


def test_a_cluster_is_upgraded_process_by_process_and_no_request_fails(
    daemons: Daemons, spec: ModelSpec, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"state_file": run_folder / "state.json"}
    scheduler = daemons.scheduler(**state)
    monkeypatch.setenv("AEGAEON_ADDRESS", scheduler.address)
    gateway = daemons.start("aegaeon.http", {"scheduler": scheduler.address, "port": 0})

    def start(index: int) -> Daemon:
        listen = f"unix:{run_folder}/worker-{index}"
        return daemons.worker(scheduler.address, worker_index=index, listen=listen)

    workers = [start(index) for index in range(2)]
    for worker in (*workers, gateway):
        worker.wait_ready()
    url = f"http://{gateway.address}"
    deployed = httpx.post(
        f"{url}/v1/models/deploy", json={"model": "m", "path": spec.path()}, timeout=START_S
    )
    assert deployed.json().get("ready") == ["node_0"], deployed.text

    until(lambda: all(_serves(url, index) for index in range(2)), START_S)

    def upgrade(load: Load) -> None:
        for index, worker in enumerate(workers):
            assert main(["drain", "node_0", "--worker", str(index)]) == 0
            worker.stop()
            start(index).wait_ready()
            until(partial(_serves, url, index), START_S)
        scheduler.stop()
        daemons.scheduler(scheduler.address, **state)
        until(lambda: all(_serves(url, index) for index in range(2)), START_S)
        done = len(load.answers)
        until(lambda: len(load.answers) >= done + 2 * CLIENTS, START_S)

    load = Load(url)
    asyncio.run(load.run(upgrade))
    assert load.problems == []
    assert len(load.answers) > CLIENTS
    assert all(answer == load.answers[0] for answer in load.answers)
    assert len(load.answers[0]) == BODY["max_tokens"]
    statistics = httpx.get(f"{url}/v1/aegaeon/runtime").json()["statistics"]
    assert not int(statistics.get("failed", 0))
    assert not int(statistics.get("rejected", 0))


def _serves(url: str, index: int) -> bool:
    """Whether a worker is back, with the model."""
    runtime = httpx.get(f"{url}/v1/aegaeon/runtime").json()
    engines = {engine["engine_id"]: engine for engine in runtime.get("engines", ())}
    engine = engines.get(f"node_0/{index}", {})
    return bool(engine.get("ready") and engine.get("estimates"))
