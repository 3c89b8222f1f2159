"""What workers find of prompts is counted once, and told to whoever asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aegaeon.errors import InvalidRequestError
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.values import PrefixSharing
from tests.scheduler.fake_cluster import FakeClusterDriver, request


@pytest.fixture
def world() -> FakeClusterDriver:
    world = FakeClusterDriver()
    world.add_worker("n0", 0)
    world.settle()
    world.deploy("a")
    world.settle()
    return world


def test_a_prompt_counts_as_often_as_it_is_asked_and_its_cached_part_as_last_told(
    world: FakeClusterDriver,
) -> None:
    sequence = world.submit(request(prompt=tuple(range(1, 50)), count=3))
    [worker] = world.workers.values()
    for tokens in (16, 32):
        world.apply(events.SequenceReused(worker.epoch, sequence.handle, tokens))
    statistics = world.cluster.state.statistics
    assert (statistics.prompt_tokens, statistics.cached_tokens) == (49, 32)
    assert sequence.backlog.open.cached == [sequence, sequence]
    world.apply(events.SequenceReused(worker.epoch, sequence.handle, 0))
    assert (sequence.cached_tokens, statistics.cached_tokens) == (0, 0), "it was lost again"
    world.apply(events.SequenceReused(worker.epoch, sequence.handle, 640))
    assert sequence.cached_tokens == 49, "tokens that came with the request are no prompt"
    world.settle()


def test_what_is_found_after_the_first_token_is_no_news(world: FakeClusterDriver) -> None:
    sequence = world.submit(request(prompt=(1,) * 40, count=30))
    [worker] = world.workers.values()
    while not sequence.generated:
        while worker.inbox:
            worker.take()
        worker.step()
        world.deliver(worker, len(worker.outbox))
    world.apply(events.SequenceReused(worker.epoch, sequence.handle, 32))
    world.apply(events.SequenceReused(worker.epoch, 999, 32))
    assert sequence.cached_tokens == world.cluster.state.statistics.cached_tokens == 0
    world.settle()


def test_salt_and_switch_reach_the_worker(world: FakeClusterDriver) -> None:
    sharing = PrefixSharing(enabled=False, salt="tenant")
    sequence = world.submit(replace(request(), prefix=sharing))
    [worker] = world.workers.values()
    [added] = [c for c in worker.inbox if isinstance(c, commands.AddSequence)]
    assert (added.handle, added.prefix) == (sequence.handle, sharing)
    world.settle()


def test_a_salt_has_a_bound(world: FakeClusterDriver) -> None:
    with pytest.raises(InvalidRequestError, match="cache_salt"):
        world.submit(replace(request(), prefix=PrefixSharing(salt="é" * 129)))
