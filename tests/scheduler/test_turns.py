"""Turns: one model runs freely, several share by quotas, and nobody starves."""

from __future__ import annotations

import pytest

from aegaeon.errors import AegaeonError
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.backlog import Backlog
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.quota import round_quotas
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import TurnEnd
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import MS, STEP_NS, SWITCH_NS, FakeWorker

MANY = 1_900


def serving(
    *models: str, batch: int = 4, policy: SchedulingPolicy = SchedulingPolicy.ROUND_ROBIN
) -> tuple[FakeClusterDriver, FakeWorker]:
    """One worker that serves the models in turn."""
    world = FakeClusterDriver(CoreConfig(policy=policy))
    worker = world.add_worker(batch=batch)
    world.settle()
    for model in models:
        world.deploy(model)
    world.settle()
    return world, worker


def take_all(worker: FakeWorker) -> list[commands.WorkerCommand]:
    """Carry out and return the waiting commands."""
    taken = list(worker.inbox)
    while worker.inbox:
        worker.take()
    return taken


def kinds(taken: list[commands.WorkerCommand]) -> list[str]:
    return [type(command).__name__ for command in taken]


def turn(taken: list[commands.WorkerCommand]) -> commands.QueueTurn:
    """The only turn queued."""
    (found,) = [command for command in taken if isinstance(command, commands.QueueTurn)]
    return found


def test_a_lone_model_runs_without_a_quota_and_arrivals_join() -> None:
    world, worker = serving("a")
    world.submit(request("a"))
    first = take_all(worker)
    assert kinds(first) == ["AddSequence", "QueueTurn"]
    assert turn(first).quota_ns == 0
    world.submit(request("a"))
    assert kinds(take_all(worker)) == ["AddSequence", "JoinTurn"]


def test_requests_that_come_together_start_in_the_same_step() -> None:
    world, worker = serving("a")
    outcomes, following = world.cluster.submit_all(
        [request("a"), request("nobody"), request("a")], Backlog(), world.now_ns
    )
    first, refused, second = outcomes
    assert isinstance(refused, AegaeonError)
    assert isinstance(first, Sequence)
    assert isinstance(second, Sequence)
    (queued,) = [command for command in following if isinstance(command, commands.QueueTurn)]
    assert list(queued.handles) == [first.handle, second.handle]
    assert not any(isinstance(command, commands.JoinTurn) for command in following)
    assert queued.epoch == worker.epoch


def test_a_second_model_limits_the_first_and_is_queued_behind_it() -> None:
    world, worker = serving("a", "b")
    world.submit(request("a", count=MANY))
    take_all(worker)
    world.submit(request("b", count=MANY))
    taken = take_all(worker)
    assert kinds(taken) == ["AddSequence", "QueueTurn", "LimitTurn"]
    queued = turn(taken)
    assert queued.model == "b"
    assert queued.quota_ns > 0
    assert queued.prefetch_model == "a"


def test_request_level_scaling_never_cuts_a_turn_short() -> None:
    world, worker = serving("a", "b", policy=SchedulingPolicy.REQUEST_LEVEL)
    world.submit(request("a", count=MANY))
    world.submit(request("b", count=MANY))
    taken = take_all(worker)
    assert [c.quota_ns for c in taken if isinstance(c, commands.QueueTurn)] == [0, 0]
    world.submit(request("a", count=MANY))
    assert kinds(take_all(worker)) == ["AddSequence", "JoinTurn"]


def test_arrivals_join_the_queued_turn() -> None:
    world, worker = serving("a", "b")
    world.submit(request("a", count=MANY))
    world.submit(request("b", count=MANY))
    queued = worker.inbox[-2]
    take_all(worker)
    late = world.submit(request("b"))
    joined = take_all(worker)[-1]
    assert isinstance(queued, commands.QueueTurn)
    assert joined == commands.JoinTurn(worker.epoch, queued.turn_id, (late.handle,))


def test_the_limit_is_lifted_when_the_other_model_has_no_work_left() -> None:
    world, worker = serving("a", "b")
    world.submit(request("a", count=MANY))
    other = world.submit(request("b", count=MANY))
    take_all(worker)
    world.apply(events.CancelRequested(other.sequence_id))
    taken = take_all(worker)
    assert kinds(taken) == ["CancelSequences", "LimitTurn"]
    assert isinstance(taken[1], commands.LimitTurn)
    assert taken[1].quota_ns == 0


def test_a_turn_has_no_more_members_than_the_worker_takes() -> None:
    world, worker = serving("a", batch=3)
    sequences = [world.submit(request("a", (i + 1,), count=2 + i)) for i in range(8)]
    world.settle()
    assert all(sequence.finish for sequence in sequences)
    assert worker.turns == type(worker.turns)()


def test_the_next_turn_is_at_the_worker_before_the_current_one_ends() -> None:
    world, worker = serving("a", "b", "c")
    for model in "abc":
        world.submit(request(model, count=MANY))
    for _ in range(2_000):
        take_all(worker)
        if worker.running is not None:
            assert len(worker.turns) == 2
        world.now_ns += worker.step()
        world.deliver(worker, len(worker.outbox))


@pytest.mark.parametrize("count", [2, 3, 7])
def test_no_model_waits_longer_than_the_turns_of_the_others(count: int) -> None:
    models = [f"m{i}" for i in range(count)]
    world, worker = serving(*models)
    for model in models:
        for i in range(3):
            world.submit(request(model, (i + 1,), count=MANY))
    ended = dict.fromkeys(models, world.now_ns)
    quota_bound = world.config.max_quota_ns + SWITCH_NS + 2 * STEP_NS
    for _ in range(4_000):
        take_all(worker)
        running = worker.turns[0].model if worker.turns else None
        world.now_ns += worker.step()
        if running is not None:
            waited = world.now_ns - ended[running]
            if worker.steps == 1:
                assert waited <= count * quota_bound, running
            ended[running] = world.now_ns
        world.deliver(worker, len(worker.outbox))
    assert all(world.now_ns - at <= count * quota_bound for at in ended.values())


def test_prefetch_names_the_model_after_the_queued_one() -> None:
    world, worker = serving("a", "b", "c")
    for model in "abc":
        world.submit(request(model, count=MANY))
    take_all(worker)
    hints: list[tuple[str, str]] = []
    for _ in range(1_000):
        world.now_ns += worker.step()
        world.deliver(worker, len(worker.outbox))
        hints += [
            (command.model, command.prefetch_model)
            for command in take_all(worker)
            if isinstance(command, commands.QueueTurn)
        ]
    assert {("c", "a"), ("a", "b"), ("b", "c")} >= set(hints[1:])
    assert len(hints) > 3


def test_sequences_of_a_turn_that_cannot_run_fail_instead_of_looping() -> None:
    world, worker = serving("a")
    sequence = world.submit(request("a"))
    for _ in range(10):
        for command in take_all(worker):
            if isinstance(command, commands.QueueTurn):
                ended = events.TurnEnded(worker.epoch, command.turn_id, TurnEnd.FAILED, 0, 0)
                world.apply(ended)
                worker.turns.clear()
    assert sequence.error is not None
    assert "could not run" in sequence.error.message


def test_quotas_follow_the_published_formula() -> None:
    # n = 4 and 2 tokens per deadline; c = 0.4 s; Q_max = 4 s:
    # alpha = max(0.4 / (2 * 4) + 1/4 + 1/2, 0.5) = 0.8; q = 0.4 / (n * (0.8 - 0.75)).
    quotas = round_quotas([25 * MS, 50 * MS], 400 * MS, [100 * MS] * 2, 4_000 * MS)
    assert quotas == pytest.approx([2_000 * MS, 4_000 * MS])
    # Far below capacity alpha is 0.5, and turns are only as long as the switches demand.
    quotas = round_quotas([MS], 10 * MS, [100 * MS], 4_000 * MS)
    assert quotas == pytest.approx([10 * MS / (100 * (0.5 - 0.01))])
    assert round_quotas([100 * MS], 0, [100 * MS], 4_000 * MS) == [0.0]
