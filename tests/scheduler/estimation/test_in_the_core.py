"""The core feeds its estimators, and asks them at the batch and context that engines have."""

from __future__ import annotations

import pytest

from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import STEP_NS, SWITCH_NS


def served(count: int) -> FakeClusterDriver:
    world = FakeClusterDriver()
    world.add_worker()
    world.settle()
    for model in "ab":
        world.deploy(model)
    world.settle()
    for model in "ab" * count:
        world.submit(request(model, count=40))
    world.settle()
    return world


def test_steps_and_switches_of_turns_are_learned() -> None:
    world = served(4)
    (engine,) = world.cluster.state.engines.values()
    assert engine.step_ns("a") == pytest.approx(STEP_NS, rel=0.1)
    assert engine.estimator.switch_ns("b") == pytest.approx(SWITCH_NS, rel=0.1)


def test_a_replaced_worker_starts_with_what_its_predecessor_knew() -> None:
    world = served(4)
    (worker,) = world.workers.values()
    world.lose(worker)
    world.add_worker()
    world.settle()
    (engine,) = world.cluster.state.engines.values()
    assert engine.step_ns("a") == pytest.approx(STEP_NS, rel=0.1)


def test_an_engine_expects_a_step_of_the_batch_and_the_context_that_it_has() -> None:
    world = served(1)
    (engine,) = world.cluster.state.engines.values()
    alone = engine.step_ns("a")
    for _ in range(3):
        world.submit(request("a", prompt=(1,) * 500, count=40))
    assert engine.batch_of("a") == 3
    assert engine.step_ns("a") == engine.estimator.step_ns("a", 3, 1_500) > alone
