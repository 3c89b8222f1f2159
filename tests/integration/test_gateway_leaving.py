"""Callers that leave: their sequences are freed within a step, and nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path

import psutil
import pytest

from aegaeon.model_spec import ModelSpec
from tests.integration.stub_cluster import MODEL, StubCluster, stub_cluster
from tests.scheduler.conftest import until
from tests.scheduler.stub_settings import StubSettings

#: Long, so that what takes one step cannot be mistaken for what takes less.
STEP_S = 10.0
ROUND = 1_000
ROUNDS = 10
AT_ONCE = 50
#: What either process may grow by: some 400 bytes per call would show.
GROWTH_BYTES = 4 << 20


async def send(
    cluster: StubCluster, stream: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request that would go on for long."""
    body = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 4_000, "stream": stream}
    content = json.dumps(body | {"return_token_ids": True, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(cluster.host, cluster.port)
    writer.write(head.encode() + content)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_leaves_frees_its_sequence_within_a_step(
    run_folder: Path, shm_dir: Path, text_specs: list[ModelSpec], stream: bool
) -> None:
    settings = StubSettings(step_s=STEP_S)
    async with stub_cluster(run_folder, shm_dir, text_specs[0].path(), settings) as cluster:
        [worker] = cluster.harness.workers
        # A step begins with the first token, and lasts.
        reader, writer = await send(cluster, stream)
        await until(lambda: worker.steps == 1, 30)
        if stream:
            await reader.readuntil(b"data: ")
        assert (await cluster.harness.runtime()).active_requests == 1
        left = time.monotonic()
        writer.close()
        # By the runtime snapshot, which is asked for over and over.
        while (await cluster.harness.runtime()).active_requests or worker.sequences:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        assert time.monotonic() - left < STEP_S
        assert worker.steps <= 2
        await cluster.settled()


async def test_thousands_of_callers_that_leave_cost_no_memory(
    run_folder: Path, shm_dir: Path, text_specs: list[ModelSpec]
) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def leave(cluster: StubCluster, number: int) -> None:
        async with slots:
            reader, writer = await send(cluster, stream=number % 2 == 0)
            with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError):
                # Some leave amid the stream, others while they wait, or before they are heard.
                async with asyncio.timeout(0.001 * (number % 20) if number % 2 else 10):
                    await reader.readuntil(b"data: ")
            writer.transport.abort()

    async def leave_all(cluster: StubCluster, rounds: int) -> list[int]:
        for _ in range(rounds):
            await asyncio.gather(*(leave(cluster, number) for number in range(ROUND)))
            await cluster.settled()
        return [psutil.Process(pid).memory_info().rss for pid in (None, cluster.gateway.pid)]

    settings = StubSettings(step_s=0.01)
    async with stub_cluster(run_folder, shm_dir, text_specs[0].path(), settings) as cluster:
        before = await leave_all(cluster, 1)
        after = await leave_all(cluster, ROUNDS)
        grown = [now - then for now, then in zip(after, before, strict=True)]
        assert max(grown) < GROWTH_BYTES
