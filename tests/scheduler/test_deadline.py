"""Turns by deadlines: lateness decides, a batch stays together, and nobody starves."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.deadline import DeadlineTurns
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.values import MAX_PRIORITY, MIN_PRIORITY
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import MS, FakeWorker

SECOND = 1_000 * MS
MANY = 1_900


def serving(
    *models: str, engines: int = 1, config: CoreConfig | None = None
) -> tuple[FakeClusterDriver, list[FakeWorker]]:
    world = FakeClusterDriver(config)
    workers = [world.add_worker(index=index, batch=64) for index in range(engines)]
    world.settle()
    for model in models:
        world.deploy(model)
    world.settle()
    return world, workers


def submit(world: FakeClusterDriver, model: str, count: int = 1) -> list[str | None]:
    return [world.submit(request(model, count=MANY)).engine_id for _ in range(count)]


def order(world: FakeClusterDriver, worker: FakeWorker) -> list[str]:
    """What the policy would run next; nothing of it has been sent."""
    engine = world.cluster.state.engines[worker.epoch]
    shrink(engine)
    engine.crowded = True
    turns = DeadlineTurns(SECOND, world.config.max_wait_ns)
    return turns.plan(engine, world.now_ns).order


def shrink(engine: Engine, pool_bytes: int = 400) -> None:
    """Leave room for one model, with two sequences of 1,901 tokens: 100 + 2 * 119 bytes."""
    device = replace(engine.identity.device, pool_bytes=pool_bytes)
    engine.identity = replace(engine.identity, device=device)


def test_the_earliest_deadline_is_next_while_nothing_is_late() -> None:
    world, (worker,) = serving(*"abcd")
    for model in "abdc":  # a and b fill the worker's two turns
        submit(world, model)
        world.now_ns += SECOND
    assert order(world, worker) == ["d", "c"]


def test_more_late_sequences_go_before_one_that_is_later() -> None:
    world, (worker,) = serving(*"abcd")
    for model, count in (("a", 1), ("b", 1), ("c", 1), ("d", 3)):
        submit(world, model, count)
        world.now_ns += SECOND // 10
    assert order(world, worker) == ["c", "d"]
    world.now_ns += 11 * SECOND
    assert order(world, worker) == ["d", "c"]


def test_a_tighter_objective_goes_first() -> None:
    world, (worker,) = serving(*"abc")
    world.deploy("d", ttft_slo_ns=8 * SECOND)
    world.settle()
    for model in "abc":
        submit(world, model)
    world.now_ns += SECOND
    submit(world, "d")
    assert order(world, worker) == ["d", "c"]
    world.submit(request("c", count=MANY, ttft_slo_ns=5 * SECOND))
    assert order(world, worker) == ["c", "d"]


def test_priority_doubles_what_lateness_counts() -> None:
    world, (worker,) = serving(*"abcd")
    for model, priority in (("a", 0), ("b", 0), ("c", 2), ("d", 0)):
        world.submit(request(model, count=MANY, priority=priority))
    submit(world, "d", 2)
    world.now_ns += 11 * SECOND
    assert order(world, worker) == ["c", "d"]  # four times one against three
    submit(world, "d", 3)
    world.now_ns += 11 * SECOND
    assert order(world, worker) == ["d", "c"]


def test_a_full_batch_takes_the_highest_priority_first() -> None:
    world, (worker,) = serving("a", "b")
    submit(world, "a", 64)
    low = world.submit(request("a", count=MANY))
    high = world.submit(request("a", count=MANY, priority=1))
    engine = world.cluster.state.engines[worker.epoch]
    assert engine.queues["a"].waiting == {low.handle: low, high.handle: high}
    world.apply(events.CancelRequested(world.sequences[0].sequence_id))
    assert engine.queues["a"].waiting == {low.handle: low}


def test_a_model_that_has_waited_long_goes_first_whatever_it_would_lose() -> None:
    world, (worker,) = serving(*"abcd")
    for model in "abc":
        submit(world, model)
    world.now_ns += 29 * SECOND
    submit(world, "d", 9)
    world.now_ns += SECOND
    assert order(world, worker)[0] == "c"


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(1, 6), min_size=2, max_size=8),
    pool_bytes=st.sampled_from([400, 3_000, 10_000]),
    ttft_ns=st.sampled_from([SECOND // 10, 2 * SECOND, 60 * SECOND]),
    priorities=st.randoms(use_true_random=False),
)
def test_no_model_waits_past_the_bound_whatever_fits_and_whatever_is_due(
    counts: list[int], pool_bytes: int, ttft_ns: int, priorities: random.Random
) -> None:
    config = CoreConfig(max_quota_ns=200 * MS, max_wait_ns=2 * SECOND)
    models = "abcdefgh"[: len(counts)]
    world, (worker,) = serving(*models, config=config)
    shrink(world.cluster.state.engines[worker.epoch], pool_bytes)
    for model, count in zip(models, counts, strict=True):
        for _ in range(count):
            priority = priorities.randint(MIN_PRIORITY, MAX_PRIORITY)
            world.submit(request(model, count=MANY, priority=priority, ttft_slo_ns=ttft_ns))
    last = dict.fromkeys(models, world.now_ns)
    # Once its wait is over, only those that have waited even longer go before it.
    bound = config.max_wait_ns + (len(models) + 2) * (config.max_quota_ns + 40 * MS)
    for _ in range(1_000):
        while worker.inbox:
            worker.take()
        running = worker.turns[0].model if worker.turns else ""
        world.now_ns += worker.step()
        if running:
            assert world.now_ns - last[running] <= bound, running
            last[running] = world.now_ns
        world.deliver(worker, len(worker.outbox))
    assert all(world.now_ns - at <= bound for at in last.values())


def test_sequences_of_a_model_stay_together_while_every_engine_has_work() -> None:
    world, _ = serving("a", "b", engines=2)
    submit(world, "b")
    of_a = submit(world, "a", 20)
    assert len(set(of_a)) == 1
    assert set(of_a).isdisjoint(submit(world, "b"))


def test_an_idle_engine_takes_over_what_is_too_much_for_one() -> None:
    world, _ = serving("a", engines=2, config=CoreConfig(affinity_slack=3))
    engines = submit(world, "a", 6)
    assert len(set(engines[:4])) == 1
    assert engines[4] not in engines[:4]


def test_a_model_takes_another_engine_when_a_batch_is_full() -> None:
    world, _ = serving("a", "b", engines=2)
    submit(world, "b")
    engines = submit(world, "a", 65)
    assert len(set(engines[:64])) == 1
    assert engines[64] not in engines[:64]


def test_a_model_takes_another_engine_when_its_kv_would_not_fit() -> None:
    world, _ = serving("a", "b", engines=2)
    submit(world, "b")
    for engine in world.cluster.state.engines.values():
        shrink(engine)
    engines = submit(world, "a", 3)
    assert engines[0] == engines[1] != engines[2]


def test_the_same_events_give_the_same_turns() -> None:
    def turns() -> list[str]:
        world, (worker,) = serving(*"abc")
        for model in "cab":
            submit(world, model, 2)
        seen = []
        for _ in range(400):
            seen += [str(c) for c in worker.inbox if isinstance(c, commands.QueueTurn)]
            while worker.inbox:
                worker.take()
            world.now_ns += worker.step()
            world.deliver(worker, len(worker.outbox))
        return seen

    assert turns() == turns()
