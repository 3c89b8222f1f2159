"""What is lost with workers comes back, and what loses workers is contained."""

from __future__ import annotations

import pytest

from aegaeon.errors import ErrorReason, ResourceExhaustedError, UnavailableError
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.lifecycle import RETRY_NS
from aegaeon_scheduler.core.recovery import MAX_LOAD_LOSSES
from aegaeon_scheduler.core.replica import Replica, ReplicaState
from aegaeon_scheduler.core.values import ModelSpec
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import FakeWorker, token_at

SECOND = 1_000_000_000


def serving(config: CoreConfig | None = None) -> tuple[FakeClusterDriver, FakeWorker]:
    driver = FakeClusterDriver(config)
    worker = driver.add_worker()
    driver.settle()
    driver.deploy("a")
    driver.settle()
    return driver, worker


def replica(driver: FakeClusterDriver, model: str = "a") -> Replica:
    return driver.cluster.state.nodes["n0"].replicas[model]


def load(driver: FakeClusterDriver) -> FakeWorker:
    """A worker comes back and has the model; nothing has run yet."""
    worker = driver.add_worker()
    driver.deliver(worker)
    while worker.inbox:
        worker.take()
    driver.deliver(worker, len(worker.outbox))
    return worker


def test_a_request_that_loses_workers_again_and_again_is_not_given_to_another() -> None:
    driver, worker = serving(CoreConfig(max_losses=2))
    poison = driver.submit(request(count=50))
    for _ in range(2):
        driver.lose(worker)
        assert not poison.ended
        worker = load(driver)
    innocent = driver.submit(request(prompt=(2,), count=50))  # has not been in as many turns
    driver.lose(worker)
    assert isinstance(poison.error, UnavailableError)
    assert poison.error.reason is ErrorReason.WORKER_LOST
    assert "3 workers in a row" in poison.error.message
    load(driver)
    driver.settle()
    assert driver.delivered[innocent.sequence_id] == [token_at((2,), i) for i in range(50)]


def test_a_request_that_gets_on_may_lose_any_number_of_workers() -> None:
    driver, worker = serving(CoreConfig(max_losses=1))
    sequence = driver.submit(request(count=30))
    for _ in range(8):
        made = len(sequence.generated)
        while len(sequence.generated) == made:
            while worker.inbox:
                worker.take()
            driver.now_ns += worker.step()
            driver.deliver(worker, len(worker.outbox))
        driver.lose(worker)
        worker = load(driver)
    driver.settle()
    assert driver.delivered[sequence.sequence_id] == [token_at((1,), i) for i in range(30)]


def test_waiting_behind_a_poisonous_request_is_no_fault() -> None:
    driver, worker = serving(CoreConfig(max_losses=1))
    crowd = [driver.submit(request(prompt=(n,), count=20)) for n in range(1, 5)]
    waiting = driver.submit(request(prompt=(9,), count=20))  # a batch has room for four
    for _ in range(2):
        driver.lose(worker)
        worker = load(driver)
    assert all(sequence.error is not None for sequence in crowd)
    driver.settle()
    assert driver.delivered[waiting.sequence_id] == [token_at((9,), i) for i in range(20)]


def test_new_requests_wait_for_a_model_that_was_just_lost() -> None:
    driver, worker = serving()
    driver.lose(worker)
    early = driver.submit(request(count=4))
    assert driver.cluster.state.statistics.recovered == 0
    driver.now_ns += SECOND
    load(driver)
    driver.settle()
    assert driver.delivered[early.sequence_id] == [token_at((1,), i) for i in range(4)]
    assert driver.cluster.state.statistics.recovered == 0


def test_they_do_not_wait_for_one_that_stays_away() -> None:
    driver, worker = serving()
    driver.lose(worker)
    driver.pass_time(driver.config.recovery_timeout_ns)
    with pytest.raises(UnavailableError) as caught:
        driver.submit(request())
    assert caught.value.reason is ErrorReason.MODEL_NOT_READY


def refuse(driver: FakeClusterDriver, worker: FakeWorker) -> None:
    driver.deliver(worker)
    worker.inbox.clear()
    full = ResourceExhaustedError("no room", reason=ErrorReason.INSUFFICIENT_MEMORY)
    driver.apply(events.ModelFailed(worker.epoch, "a", full))
    assert replica(driver).state is ReplicaState.FAILED


def test_what_was_served_is_loaded_again_once_the_reason_against_it_has_passed() -> None:
    driver, worker = serving()
    driver.lose(worker)
    worker = driver.add_worker()
    refuse(driver, worker)
    for _ in range(3):
        assert driver.cluster.next_due_ns() == driver.now_ns + RETRY_NS
        driver.pass_time(RETRY_NS)
        assert replica(driver).state is ReplicaState.LOADING
        refuse(driver, worker)
    driver.pass_time(RETRY_NS)
    driver.settle()
    assert replica(driver).state is ReplicaState.READY


def test_a_deployment_that_fails_is_reported_and_not_tried_again() -> None:
    driver = FakeClusterDriver()
    worker = driver.add_worker()
    driver.deliver(worker)
    operation = driver.deploy("a")
    driver.answer_inspection()
    worker.inbox.clear()
    driver.apply(events.ModelFailed(worker.epoch, "a", ResourceExhaustedError("no room")))
    assert driver.results[operation].error is not None
    assert driver.cluster.next_due_ns() is None


def test_a_model_whose_load_loses_workers_is_tried_more_and_more_rarely() -> None:
    driver, worker = serving()
    driver.lose(worker)
    for _ in range(MAX_LOAD_LOSSES):
        worker = driver.add_worker()
        driver.deliver(worker)
        assert replica(driver).state is ReplicaState.LOADING
        driver.lose(worker)
    worker = driver.add_worker()
    driver.deliver(worker)
    assert replica(driver).state is ReplicaState.FAILED
    driver.pass_time(RETRY_NS)
    driver.settle()
    assert replica(driver).state is ReplicaState.READY
    assert replica(driver).load_losses == 0


def test_an_undeployed_model_does_not_come_back() -> None:
    driver, worker = serving()
    driver.lose(worker)
    worker = driver.add_worker()
    refuse(driver, worker)
    driver.undeploy("a")
    driver.settle()
    driver.pass_time(2 * RETRY_NS)
    driver.settle()
    assert "a" not in driver.cluster.state.nodes["n0"].replicas
    assert ModelSpec("a", "/a") not in [m.spec for m in driver.cluster.state.models.values()]
