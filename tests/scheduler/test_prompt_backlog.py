"""A reader that does not read what is told of its prompt pauses it, and nobody else."""

from __future__ import annotations

from aegaeon_scheduler.core.config import CoreConfig
from tests.scheduler.fake_cluster import FakeClusterDriver, request

LIMIT = 5
PROMPT = tuple(range(10, 40))


def test_an_unread_prompt_stops_at_the_backlog_and_goes_on_when_it_is_read() -> None:
    world = FakeClusterDriver(CoreConfig(reader_backlog_tokens=LIMIT))
    world.add_worker()
    world.settle()
    world.deploy("a")
    world.settle()
    # Of one reader each; the other one goes on.
    slow = world.submit(request("a", PROMPT, 3, prompt_logprobs=20))
    other = world.submit(request("a", PROMPT, 3, prompt_logprobs=0))
    for _ in range(200):
        world.settle(read=False)
        world.read(1)
    assert other.ended
    assert slow.paused
    assert slow.unread == slow.told_tokens - 1 == LIMIT
    read = world.told[slow.sequence_id]
    world.read(0)
    assert world.told[slow.sequence_id] == read + LIMIT
    world.settle()
    assert slow.ended
    assert world.told[slow.sequence_id] == len(PROMPT)
    assert not slow.unread
