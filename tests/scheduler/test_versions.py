"""Neighbouring versions of the contract get on with each other, and others are told."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from aegaeon.capability import OF_SCHEDULER, OF_WORKER, from_numbers
from aegaeon.errors import ErrorReason, PreconditionError
from aegaeon.rpc.status import from_rpc_error
from aegaeon.rpc.version import CONTRACT_VERSION, check_version
from aegaeon.v1 import inference_pb2
from tests.scheduler.conftest import Start, until
from tests.scheduler.fake_cluster import SCORING
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
    assert from_numbers(answer.capabilities) == OF_SCHEDULER
    assert len(answer.capabilities) == len(OF_SCHEDULER)


def scored(number: int) -> inference_pb2.GenerateRequest:
    request = generate_request((number, 2, 3), 20)
    request.prompt_logprobs = 1
    return request


@pytest.mark.parametrize("same_node", [True, False])
async def test_requests_go_only_to_workers_that_know_what_they_ask_for(
    start: Start, same_node: bool
) -> None:
    harness = await start()
    older = await harness.worker(StubSettings(capabilities=OF_WORKER - SCORING))
    newer = await harness.worker(
        StubSettings(worker_index=1) if same_node else StubSettings(node_id="n1")
    )
    await harness.deploy(replica_count=1 if same_node else 2)
    await until(lambda: older.models and newer.models)
    plain = [collect(harness, generate_request((number,), 20)) for number in range(8)]
    answers = await asyncio.gather(*plain, *(collect(harness, scored(n)) for n in range(8)))
    assert all(len(tokens) == 20 for tokens, *_ in answers)
    assert older.steps
    assert newer.steps
    assert not older.not_known
    [told, _] = sorted((await harness.runtime()).workers, key=lambda w: len(w.capabilities))
    assert from_numbers(told.capabilities) == OF_WORKER - SCORING
    await harness.settled()


async def test_where_no_worker_knows_it_the_error_names_feature_and_worker(start: Start) -> None:
    harness = await start()
    older = await harness.worker(StubSettings(capabilities=frozenset()))
    await harness.deploy()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(harness, scored(1))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    error = from_rpc_error(caught.value)
    assert error.reason is ErrorReason.FEATURE_MISSING
    assert error.metadata == {"feature": "PROMPT_LOGPROBS", "workers": "n0/0"}
    assert "workers n0/0 of model 'm' do not know" in str(error)
    tokens, *_ = await collect(harness, generate_request((1,), 20))
    assert len(tokens) == 20
    assert not older.not_known
    await harness.settled()


async def test_a_worker_that_comes_back_newer_takes_what_it_knows_now(start: Start) -> None:
    harness = await start()
    older = await harness.worker(StubSettings(capabilities=frozenset()))
    await harness.deploy()
    with pytest.raises(grpc.aio.AioRpcError, match="PROMPT_LOGPROBS"):
        await collect(harness, scored(1))
    await older.kill()
    await harness.worker(serving=older)
    tokens, *_ = await collect(harness, scored(1))
    assert len(tokens) == 20
    await harness.settled()


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
