"""The contract holds for a program that shares no code with this project."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.repo import stub_scheduler
from tests.repo.stub_scheduler import StubScheduler

PROGRAM = Path(__file__).parents[2] / "examples" / "node" / "main.js"
PROMPT = [5, 6, 7]


async def run_program(*arguments: str) -> tuple[int | None, str, str]:
    """Run the example to its end: exit status, output, errors."""
    process = await asyncio.create_subprocess_exec(
        "node",
        str(PROGRAM),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), timeout=30)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return process.returncode, output.decode(), errors.decode()


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[tuple[StubScheduler, str]]:
    stub = StubScheduler()  # type: ignore[abstract]  # what the program does not call
    address = f"unix:{tmp_path}/scheduler.sock"
    server = await stub_scheduler.start(stub, address)
    yield stub, address
    await server.stop(grace=None)


async def test_lists_generates_and_cancels(scheduler: tuple[StubScheduler, str]) -> None:
    stub, address = scheduler
    status, output, errors = await run_program(
        address, stub_scheduler.MODEL, ",".join(map(str, PROMPT))
    )
    assert status == 0, errors
    lines = dict(line.split(": ", 1) for line in output.splitlines())
    assert lines["models"] == stub_scheduler.MODEL
    expected = " ".join(str(100 + i) for i in range(16))
    assert lines[f"tokens of {stub_scheduler.MODEL}"] == f"{expected}  (LENGTH)"
    assert "no request is active" in lines["cancelled"]
    assert (stub.active, stub.cancelled) == (0, 1)
    assert [list(request.prompt_token_ids) for request in stub.requests] == [PROMPT, PROMPT]


async def test_reports_an_unreachable_scheduler(tmp_path: Path) -> None:
    status, _, errors = await run_program(f"unix:{tmp_path}/nobody.sock")
    assert status == 1
    assert "UNAVAILABLE" in errors
