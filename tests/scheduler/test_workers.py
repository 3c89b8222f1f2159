"""Workers come and go; streams do not notice."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from aegaeon.errors import ErrorReason
from aegaeon.rpc.status import from_rpc_error
from aegaeon.v1 import cluster_pb2, model_pb2, worker_pb2
from tests.scheduler.conftest import Harness, Start, until
from tests.scheduler.requests import generate_request
from tests.scheduler.stub_model import answer
from tests.scheduler.stub_settings import StubSettings
from tests.scheduler.test_generate import collect


async def running(harness: Harness, count: int) -> list[asyncio.Task[list[int]]]:
    """Start long generations, and wait until each has tokens."""

    async def tokens(i: int) -> list[int]:
        return (await collect(harness, generate_request((i,), 150)))[0]

    tasks = [asyncio.create_task(tokens(i)) for i in range(count)]
    state = harness.server.driver.cluster.state
    await until(
        lambda: len(state.sequences) == count and all(s.generated for s in state.sequences.values())
    )
    return tasks


async def test_a_killed_and_replaced_worker_is_not_noticed(scheduler: Harness) -> None:
    tasks = await running(scheduler, 20)
    await scheduler.workers[0].kill()
    await scheduler.worker()
    assert [await task for task in tasks] == [answer((i,), 150) for i in range(20)]
    assert (await scheduler.runtime()).statistics.recovered == 20
    await scheduler.settled()


async def test_sequences_of_a_killed_worker_move_to_another_node(scheduler: Harness) -> None:
    await scheduler.worker(StubSettings(node_id="n1"))
    await scheduler.deploy(node_ids=["n1"])
    tasks = await running(scheduler, 20)
    engines = scheduler.server.driver.cluster.state.engines.values()
    assert all(len(engine.sequences) == 10 for engine in engines)
    await scheduler.workers[0].kill()
    assert [await task for task in tasks] == [answer((i,), 150) for i in range(20)]


async def test_a_leaving_worker_hands_over_at_once(scheduler: Harness) -> None:
    await scheduler.worker(StubSettings(worker_index=1))
    state = scheduler.server.driver.cluster.state
    await until(lambda: all(e.loaded for e in state.engines.values()))
    tasks = await running(scheduler, 20)
    await scheduler.workers[0].goodbye()
    assert [await task for task in tasks] == [answer((i,), 150) for i in range(20)]


async def test_a_hung_worker_is_fenced_when_its_lease_ends(start: Start) -> None:
    harness = await start(lease_ttl_ns=300_000_000)
    await harness.worker()
    await harness.deploy()
    tasks = await running(harness, 5)
    harness.workers[0].stop_renewing()
    await until(lambda: not harness.server.driver.cluster.state.engines, 2.0)
    await harness.worker()
    assert [await task for task in tasks] == [answer((i,), 150) for i in range(5)]


async def test_a_deployment_ends_when_the_worker_that_reads_its_files_hangs(start: Start) -> None:
    harness = await start(lease_ttl_ns=300_000_000)
    worker = await harness.worker(StubSettings(inspect_s=60))
    deploying = asyncio.create_task(harness.deploy())
    await asyncio.sleep(0.05)
    worker.stop_renewing()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(5):
            await deploying
    assert from_rpc_error(caught.value).reason is ErrorReason.WORKER_LOST


async def test_a_worker_that_is_heard_keeps_its_lease(start: Start) -> None:
    harness = await start(lease_ttl_ns=300_000_000)
    worker = await harness.worker()
    worker.stop_renewing()
    engines = harness.server.driver.cluster.state.engines
    for _ in range(12):
        worker.send(worker_pb2.ExecuteResponse(memory=cluster_pb2.WorkerMemory(sequences=0)))
        await asyncio.sleep(0.05)
        assert worker.epoch in engines
    await until(lambda: worker.epoch not in engines, 2.0)


async def test_without_another_worker_requests_fail_in_bounded_time(start: Start) -> None:
    harness = await start(recovery_timeout_ns=200_000_000)
    worker = await harness.worker()
    await harness.deploy()
    (task,) = await running(harness, 1)
    await worker.kill()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await task
    assert from_rpc_error(caught.value).reason is ErrorReason.WORKER_LOST
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(harness, generate_request())
    error = from_rpc_error(caught.value)
    assert error.reason is ErrorReason.MODEL_NOT_READY
    assert error.metadata["state"] == "FAILED"
    harness.assert_empty()


async def test_a_restarted_scheduler_takes_over_what_workers_serve(start: Start) -> None:
    first = await start()
    worker = await first.worker()
    await first.deploy()
    second = await start()
    await second.worker(serving=worker)
    tokens, _ = await collect(second, generate_request((4,), 12))
    assert tokens == answer((4,), 12)


async def test_two_models_share_one_worker_in_turns(scheduler: Harness) -> None:
    await scheduler.deploy("other")

    async def tokens(model: str, i: int) -> list[int]:
        return (await collect(scheduler, generate_request((i,), 200, model)))[0]

    pairs = [(model, i) for i in range(4) for model in ("m", "other")]
    results = await asyncio.gather(*(tokens(*pair) for pair in pairs))
    assert results == [answer((i,), 200) for _, i in pairs]
    turns = scheduler.workers[0].turn_log
    assert {"m", "other"} <= set(turns)
    assert len(turns) > 2
    await scheduler.settled()


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("contract_version", 99, ErrorReason.CONTRACT_MISMATCH),
        ("node_id", "", ErrorReason.INVALID_FIELD),
        ("address", "nowhere", ErrorReason.INVALID_FIELD),
        ("max_batch_sequences", 0, ErrorReason.INVALID_FIELD),
    ],
)
async def test_a_wrong_registration_is_refused(
    start: Start, field: str, value: object, reason: ErrorReason
) -> None:
    harness = await start()
    good = {
        "contract_version": 1,
        "node_id": "n",
        "address": "127.0.0.1:1",
        "max_batch_sequences": 1,
    }
    request = cluster_pb2.RegisterWorkerRequest(**{**good, field: value})
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await harness.cluster.RegisterWorker(request)
    assert from_rpc_error(caught.value).reason is reason


async def test_a_replaced_worker_cannot_take_its_place_back(start: Start) -> None:
    harness = await start()
    earlier, later = await harness.worker(), await harness.worker()
    assert later.epoch > earlier.epoch
    with pytest.raises(grpc.aio.AioRpcError, match="registered there later") as caught:
        await earlier.register()
    assert from_rpc_error(caught.value).reason is ErrorReason.INVALID_FIELD
    assert list(harness.server.driver.cluster.state.engines) == [later.epoch]
    await later.kill()
    await until(lambda: not harness.server.driver.cluster.state.engines)
    await earlier.register()
    assert earlier.epoch > later.epoch


async def test_an_unknown_lease_must_be_registered_again(start: Start) -> None:
    harness = await start()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await harness.cluster.RenewLease(cluster_pb2.RenewLeaseRequest(epoch=1))
    assert from_rpc_error(caught.value).reason is ErrorReason.STALE_LEASE


async def test_models_of_a_lost_worker_are_loaded_again(scheduler: Harness) -> None:
    await scheduler.workers[0].kill()
    state = scheduler.server.driver.cluster.state
    await until(lambda: state.model_state("m").name == "FAILED")
    await scheduler.worker()
    await until(lambda: state.model_state("m").name == "READY")
    answer_ = await scheduler.models.GetModel(model_pb2.GetModelRequest(name="m"))
    assert answer_.model.replicas[0].state == model_pb2.REPLICA_STATE_READY


async def test_a_worker_that_breaks_the_contract_is_fenced(scheduler: Harness) -> None:
    (task,) = await running(scheduler, 1)
    worker = scheduler.workers[0]
    broken = worker_pb2.StepBatch(handles=[1], token_ids=[1, 2])
    worker.send(worker_pb2.ExecuteResponse(step=broken))
    engines = scheduler.server.driver.cluster.state.engines
    before = worker.epoch
    await until(lambda: before not in engines)
    assert await task == answer((0,), 150)  # the worker registers again, and goes on
