"""Neighbouring versions of the contract get on with each other, and others are told."""

from __future__ import annotations

import grpc
import pytest

from aegaeon.errors import ErrorReason, PreconditionError
from aegaeon.rpc.status import from_rpc_error
from aegaeon.rpc.version import CONTRACT_VERSION, check_version
from aegaeon.v1 import inference_pb2
from tests.scheduler.conftest import Start
from tests.scheduler.requests import generate_request
from tests.scheduler.stub_settings import StubSettings
from tests.scheduler.test_generate import collect

NEXT = CONTRACT_VERSION + 1


@pytest.mark.parametrize("version", [CONTRACT_VERSION, NEXT])
async def test_a_worker_of_the_next_version_serves(start: Start, version: int) -> None:
    harness = await start()
    await harness.worker(StubSettings(contract_version=version))
    await harness.deploy()
    tokens, *_ = await collect(harness, generate_request((1,), 20))
    assert len(tokens) == 20
    [worker] = (await harness.runtime()).workers
    assert worker.contract_version == version
    await harness.settled()


@pytest.mark.parametrize("version", [0, NEXT + 1, 99])
async def test_a_worker_further_away_is_told_what_is_too_old(start: Start, version: int) -> None:
    harness = await start()
    with pytest.raises(grpc.aio.AioRpcError, match="upgrade one release at a time") as caught:
        await harness.worker(StubSettings(contract_version=version))
    error = from_rpc_error(caught.value)
    assert error.reason is ErrorReason.CONTRACT_MISMATCH
    assert error.metadata == {"ours": str(CONTRACT_VERSION), "theirs": str(version)}
    assert not (await harness.runtime()).workers


async def test_clients_can_ask_for_what_not_every_release_has(start: Start) -> None:
    harness = await start()
    answer = await harness.inference.GetCapabilities(inference_pb2.GetCapabilitiesRequest())
    assert list(answer.capabilities) == [inference_pb2.CAPABILITY_GROUPED_SUBMISSIONS]


@pytest.mark.parametrize("ours", [1, 2, 7])
def test_one_version_of_difference_is_fine_both_ways(ours: int) -> None:
    for theirs in range(12):
        if theirs >= 1 and abs(ours - theirs) <= 1:
            check_version(theirs, peer="worker", ours=ours)
            continue
        with pytest.raises(PreconditionError) as caught:
            check_version(theirs, peer="worker", ours=ours)
        old, new = ("it", "this release") if theirs < ours else ("this release", "it")
        assert f"{old} is too old for {new}" in str(caught.value)
