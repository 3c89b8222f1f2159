"""What a scheduler tells Prometheus, against what happened."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.metrics.scraping import Samples, scrape
from tests.scheduler.conftest import Harness, Start, until
from tests.scheduler.requests import generate_request
from tests.scheduler.stub_settings import StubSettings


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "m"


async def run(harness: Harness, count: int, model: str = "m") -> None:
    async for _ in harness.inference.Generate(generate_request(count=count, model=model)):
        pass


def of(samples: Samples, name: str) -> Samples:
    """Of one series, by labels."""
    return {key[1:]: value for key, value in samples.items() if key[0] == f"aegaeon_{name}"}


async def test_requests_tokens_and_times_are_counted(start: Start, socket_path: Path) -> None:
    harness = await start(metrics_listen=f"unix:{socket_path}")
    await harness.worker()
    for model in ("m", "n"):
        await harness.deploy(model)
    await run(harness, 8)
    await run(harness, 1, "n")
    with pytest.raises(grpc.aio.AioRpcError):
        await run(harness, 1, "absent")
    samples = await scrape(str(socket_path))
    assert of(samples, "requests_total") == {("m",): 1, ("n",): 1}
    assert of(samples, "requests_ended_total") == {("m", "finished"): 1, ("n", "finished"): 1}
    assert of(samples, "requests_refused_total") == {("model_not_found",): 1}
    assert of(samples, "prompt_tokens_total") == {("m",): 3, ("n",): 3}
    assert of(samples, "generation_tokens_total") == {("m",): 8, ("n",): 1}
    assert of(samples, "time_to_first_token_seconds_count") == {("m",): 1, ("n",): 1}
    # One token has no time per further one.
    assert of(samples, "time_per_output_token_seconds_count") == {("m",): 1}
    steps = StubSettings().step_s * 7
    assert of(samples, "time_per_output_token_seconds_sum")[("m",)] >= steps / 7 * 0.5
    assert of(samples, "request_generation_tokens_sum") == {("m",): 8, ("n",): 1}
    assert of(samples, "step_seconds_count") == {("m",): 8, ("n",): 1}
    assert of(samples, "turns_total") == {("n0/0", "m"): 1, ("n0/0", "n"): 1}
    assert sum(of(samples, "model_switches_total").values()) == 2
    assert of(samples, "replicas") == {("m", "ready"): 1, ("n", "ready"): 1}
    assert of(samples, "engine_ready") == {("n0/0", "simple"): 1}


async def test_what_runs_and_what_waits_is_looked_up(start: Start, socket_path: Path) -> None:
    harness = await start(metrics_listen=f"unix:{socket_path}")
    worker = await harness.worker(StubSettings(max_batch_sequences=1))
    await harness.deploy()
    first = harness.inference.Generate(generate_request(count=1900))
    await first.read()
    second = harness.inference.Generate(generate_request(count=1900))
    state = harness.server.driver.cluster.state
    await until(lambda: len(state.sequences) == 2)
    samples = await scrape(str(socket_path))
    assert of(samples, "num_requests_running") == {("m",): 1}
    assert of(samples, "num_requests_waiting") == {("m",): 1}
    assert of(samples, "engine_model") == {("n0/0", "m"): 1}
    assert of(samples, "engine_sequences") == {("n0/0",): 2}
    first.cancel()
    second.cancel()
    await harness.settled()
    samples = await scrape(str(socket_path))
    assert of(samples, "requests_ended_total") == {("m", "cancelled"): 2}
    assert of(samples, "num_requests_running") == {("m",): 0}
    assert of(samples, "engine_model") == {}
    assert of(samples, "time_per_output_token_seconds_count") == {}
    await worker.kill()
    await until(lambda: not state.engines)
    assert of(await scrape(str(socket_path)), "engine_ready") == {}


async def test_a_request_that_moves_is_counted_once(start: Start, socket_path: Path) -> None:
    harness = await start(metrics_listen=f"unix:{socket_path}")
    worker = await harness.worker(StubSettings(step_s=0.01))
    await harness.deploy()
    call = harness.inference.Generate(generate_request(count=40))
    await call.read()
    await worker.kill()
    await harness.worker(serving=worker)
    while await call.read() is not grpc.aio.EOF:
        pass
    samples = await scrape(str(socket_path))
    assert of(samples, "request_moves_total") == {("recovered",): 1}
    assert of(samples, "requests_total") == of(samples, "time_to_first_token_seconds_count")
    assert of(samples, "requests_ended_total") == {("m", "finished"): 1}
