"""What ends a start, and what is only a worker that is away for a moment."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import aegaeon.client.startup
from aegaeon.client.policies import Policies
from aegaeon.client.startup import initialise
from aegaeon.deployment import DeployOutcome
from aegaeon.errors import (
    AegaeonError,
    ErrorReason,
    ModelLoadError,
    PreconditionError,
    UnavailableError,
)
from aegaeon.model_spec import ModelSpec
from aegaeon.node_config import NodeConfig

LOST = UnavailableError("lost", reason=ErrorReason.WORKER_LOST)
AWAY = PreconditionError("no worker is connected", reason=ErrorReason.TOPOLOGY_INVALID)
BROKEN = ModelLoadError("truncated")


class StubConnection:
    def __init__(self, answers: list[DeployOutcome | AegaeonError]) -> None:
        self._answers: Iterator[DeployOutcome | AegaeonError] = iter(answers)

    async def wait_connected(self, timeout_s: float) -> None:
        assert timeout_s > 0

    async def apply_topology(self, *_: object, **__: object) -> None: ...

    async def deploy(self, *_: object, **__: object) -> DeployOutcome:
        answer = next(self._answers)
        if isinstance(answer, AegaeonError):
            raise answer
        return answer


async def start(*answers: DeployOutcome | AegaeonError) -> None:
    node = NodeConfig("n", 0, 0, 1, cached_models=[ModelSpec("m", "/m")])
    await initialise(
        StubConnection(list(answers)),  # type: ignore[arg-type]
        [node],
        Policies("least-loaded", "least-outstanding", "deadline", 0),
        demand_memory=False,
        deadline=time.monotonic() + 10,
        on_progress=lambda *_: None,
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aegaeon.client.startup, "_RETRY_S", 0.0)


async def test_a_worker_that_is_away_for_a_moment_ends_no_start() -> None:
    partly = DeployOutcome(ready=(), failed={"n": AWAY}, evicted=())
    await start(LOST, AWAY, partly, DeployOutcome(ready=("n",), failed={}, evicted=()))


async def test_files_that_are_broken_end_it_at_once() -> None:
    with pytest.raises(ModelLoadError):
        await start(BROKEN)
    partly = DeployOutcome(ready=("o",), failed={"n": BROKEN}, evicted=())
    with pytest.raises(PreconditionError, match=r"node 'n'.*truncated"):
        await start(partly)
