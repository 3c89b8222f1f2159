"""Engines that are to be stopped: their work goes on elsewhere, and nothing new comes."""

from __future__ import annotations

import pytest

from aegaeon.errors import UnavailableError
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.draining import drained, unserved_models
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.values import EngineRole
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import FakeWorker, token_at


def drain(world: FakeClusterDriver, *workers: FakeWorker, resume: bool = False) -> None:
    epochs = tuple(worker.epoch for worker in workers)
    world.apply(events.DrainRequested(epochs, resume))


def engine(world: FakeClusterDriver, worker: FakeWorker) -> Engine:
    return world.cluster.state.engines[worker.epoch]


@pytest.fixture
def world() -> FakeClusterDriver:
    return FakeClusterDriver()


def two_engines(world: FakeClusterDriver, nodes: tuple[str, str]) -> tuple[FakeWorker, FakeWorker]:
    first = world.add_worker(nodes[0], 0)
    second = world.add_worker(nodes[1], int(nodes[0] == nodes[1]))
    world.settle()
    world.deploy("a", len(set(nodes)))
    world.settle()
    return first, second


@pytest.mark.parametrize("nodes", [("n0", "n0"), ("n0", "n1")])
def test_running_sequences_go_on_elsewhere_with_their_tokens(
    world: FakeClusterDriver, nodes: tuple[str, str]
) -> None:
    first, second = two_engines(world, nodes)
    running = [world.submit(request("a", (number,), 20)) for number in range(4)]
    for _ in range(4):
        for worker in (first, second):
            while worker.inbox:
                worker.take()
            worker.step()
            world.deliver(worker, len(worker.outbox))
    assert engine(world, first).sequences
    drain(world, first)
    assert not engine(world, first).sequences
    assert len(engine(world, second).sequences) == 4
    late = world.submit(request("a", (9,), 5))
    assert late.engine_id == engine(world, second).engine_id
    world.settle()
    assert drained(engine(world, first))
    for sequence in (*running, late):
        prompt = tuple(sequence.prompt)
        assert world.delivered[sequence.sequence_id] == [
            token_at(prompt, index) for index in range(sequence.stop.max_new_tokens)
        ]


def only_engine(world: FakeClusterDriver) -> FakeWorker:
    worker = world.add_worker()
    world.settle()
    world.deploy("a")
    world.settle()
    return worker


def test_the_only_engine_ends_what_it_has_and_new_requests_wait_for_it(
    world: FakeClusterDriver,
) -> None:
    worker = only_engine(world)
    running = world.submit(request("a", (1,), 20))
    drain(world, worker)
    assert list(unserved_models(world.cluster.state)) == ["a"]
    assert not drained(engine(world, worker))
    waiting = world.submit(request("a", (2,), 5))
    assert waiting.engine_id is None
    world.settle()
    assert len(running.generated) == 20
    assert not waiting.generated
    assert drained(engine(world, worker))
    world.lose(worker)
    world.add_worker()
    world.settle()
    assert len(waiting.generated) == 5


def test_a_drain_that_is_taken_back_lets_the_waiting_go_on(world: FakeClusterDriver) -> None:
    worker = only_engine(world)
    drain(world, worker)
    waiting = world.submit(request("a", (2,), 5))
    world.settle()
    drain(world, worker, resume=True)
    assert not list(unserved_models(world.cluster.state))
    world.settle()
    assert len(waiting.generated) == 5


def test_nobody_waits_longer_than_after_a_loss(world: FakeClusterDriver) -> None:
    worker = only_engine(world)
    drain(world, worker)
    waiting = world.submit(request("a", (2,), 5))
    world.pass_time(world.config.recovery_timeout_ns)
    assert waiting.error is not None
    drain(world, worker)  # asked again: the time goes on
    with pytest.raises(UnavailableError, match="to be stopped"):
        world.submit(request("a", (2,), 5))


def test_a_whole_node_gives_its_work_to_the_other(world: FakeClusterDriver) -> None:
    first, second = two_engines(world, ("n0", "n1"))
    for number in range(6):
        world.submit(request("a", (number,), 20))
    drain(world, first)
    assert engine(world, first).ending
    assert len(engine(world, second).sequences) == 6
    world.settle()
    assert all(sequence.ended for sequence in world.sequences)


def test_a_drained_node_gets_no_replica(world: FakeClusterDriver) -> None:
    first, _ = two_engines(world, ("n0", "n1"))
    drain(world, first)
    world.deploy("b")
    world.settle()
    assert set(world.cluster.state.homes["b"]) == {"n1"}


def test_a_prefill_engine_keeps_what_no_decode_engine_takes(world: FakeClusterDriver) -> None:
    prefill = world.add_worker("n0", 0, role=EngineRole.PREFILL)
    decode = world.add_worker("n0", 1, role=EngineRole.DECODE)
    world.settle()
    world.deploy("a")
    world.settle()
    running = [world.submit(request("a", (number,), 20)) for number in range(3)]
    drain(world, prefill, decode)
    world.settle()
    assert [len(sequence.generated) for sequence in running] == [20] * 3
    assert drained(engine(world, prefill))
    assert drained(engine(world, decode))


def test_a_worker_that_comes_back_takes_part_again(world: FakeClusterDriver) -> None:
    first, _ = two_engines(world, ("n0", "n1"))
    drain(world, first)
    again = world.add_worker("n0", 0)
    world.settle()
    assert not engine(world, again).draining
    for number in range(4):
        world.submit(request("a", (number,), 20))
    assert engine(world, again).sequences
    world.settle()


def test_an_engine_that_is_loading_takes_over_from_one_that_goes(world: FakeClusterDriver) -> None:
    first = world.add_worker("n0", 0)
    world.settle()
    world.deploy("a")
    world.settle()
    second = world.add_worker("n0", 1)
    world.deliver(second)  # it is there, and has been asked to load
    assert "a" in engine(world, second).loading
    sequence = world.submit(request("a", (1,), 20))
    world.lose(first)
    world.settle()
    assert len(sequence.generated) == 20
    assert "a" in engine(world, second).loaded


def test_unknown_registrations_are_nobody_s_business(world: FakeClusterDriver) -> None:
    world.apply(events.DrainRequested((77,)))
