"""Requests go where KV of their beginnings is, as far as that is worth it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.commands import AddSequence
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.notices import PrefixPull, RequestChange, RequestChanged
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import (
    EngineRole,
    GenerationRequest,
    ModelSpec,
    PrefixSharing,
    RoutingPolicy,
    WorkerMemory,
)
from tests.scheduler.fake_cluster import FakeClusterDriver, request

NODES = ("n0", "n1", "n2")


def cluster(config: CoreConfig | None = None) -> FakeClusterDriver:
    """Three nodes with an engine each, and the model on all of them."""
    world = FakeClusterDriver(config)
    for node in NODES:
        world.add_worker(node, batch=64)
    world.settle()
    world.deploy("a", 3)
    world.settle()
    return world


@pytest.fixture
def world() -> FakeClusterDriver:
    return cluster()


def prompt_of(number: int, length: int = 200) -> tuple[int, ...]:
    """Prompts of different numbers have no first block in common."""
    return tuple((number * 31 + i * 7) % 900 + 3 for i in range(length))


def ask(number: int, count: int = 20, length: int = 200) -> GenerationRequest:
    return request(prompt=prompt_of(number, length), count=count)


def serve(world: FakeClusterDriver, wanted: GenerationRequest) -> Sequence:
    sequence = world.submit(wanted)
    world.settle()
    return sequence


def where(world: FakeClusterDriver, sequence: Sequence) -> str:
    """The engine that a sequence was given to first."""
    [epoch] = {
        command.epoch
        for command in world.sent
        if isinstance(command, AddSequence) and command.prompt is sequence.prompt
    }
    return world.cluster.state.engines[epoch].engine_id


def follow_up(sequence: Sequence, number: int = 99) -> GenerationRequest:
    """The next turn of a conversation."""
    said = (*sequence.prompt, *sequence.generated, *prompt_of(number, 20))
    return request(prompt=said, count=20)


def test_turns_of_a_conversation_stay_where_the_first_one_went(world: FakeClusterDriver) -> None:
    turns = [serve(world, ask(number)) for number in range(5)]
    homes = [where(world, turn) for turn in turns]
    assert set(homes) == {"n0/0", "n1/0", "n2/0"}
    for _ in range(3):
        for number, turn in enumerate(turns):
            turns[number] = serve(world, follow_up(turn))
            known = len(turn.prompt) + len(turn.generated) - 1
            assert where(world, turns[number]) == homes[number]
            assert turns[number].expected_cached == known // 16 * 16
    assert world.cluster.state.statistics.prefix_followed.total() > 0


def test_short_messages_below_common_instructions_find_their_own_conversation(
    world: FakeClusterDriver,
) -> None:
    """What tells the conversations apart is in blocks that answers fill."""
    common = prompt_of(1, 100)
    turns = [serve(world, request(prompt=(*common, 3 + n), count=30)) for n in range(20)]
    for turn in turns:
        again = serve(world, follow_up(turn))
        assert again.expected_cached == 128
        assert where(world, again) == where(world, turn)


def test_without_common_beginnings_every_request_goes_where_it_would_go_otherwise() -> None:
    usual, aware = (
        cluster(CoreConfig(routing=routing))
        for routing in (RoutingPolicy.LEAST_OUTSTANDING, RoutingPolicy.PREFIX_AWARE)
    )
    for number in range(80):
        for world in (usual, aware):
            world.submit(ask(number, count=1 + number % 30))
            if number % 7 == 0:
                world.settle()
    for world in (usual, aware):
        world.settle()
    assert len(aware.cluster.state.prefixes) > 0 == len(usual.cluster.state.prefixes)
    assert aware.outputs == usual.outputs


def test_a_hot_beginning_spreads_before_it_overloads_an_engine() -> None:
    slack = 8
    world = cluster(CoreConfig(affinity_slack=slack))
    common = prompt_of(1, 1_500)
    serve(world, request(prompt=common))
    engines = world.cluster.state.engines.values()
    for number in range(150):
        before = {engine.engine_id: len(engine.sequences) for engine in engines}
        sequence = world.submit(request(prompt=(*common, *prompt_of(number, 20)), count=100))
        fewest = min(before.values())
        assert before[sequence.engine_id or ""] <= fewest + max(slack, fewest // 4)
    assert {len(engine.prefixes) for engine in engines} == {1}, "all of them keep it by now"
    statistics = world.cluster.state.statistics
    assert statistics.prefix_followed.total() > 0 < statistics.prefix_passed_over
    world.settle()


def test_a_beginning_that_spares_little_is_no_reason_to_wait() -> None:
    world = cluster(CoreConfig(affinity_slack=1_000))
    serve(world, request(prompt=prompt_of(1, 20)))
    home = world.submit(request(prompt=prompt_of(1, 40), count=500)).engine_id
    for number in range(30):
        world.submit(request(prompt=(*prompt_of(1, 20), *prompt_of(number, 400)), count=500))
    loads = {e.engine_id: len(e.sequences) for e in world.cluster.state.engines.values()}
    assert loads[home or ""] < 20, loads
    world.settle()


@pytest.mark.parametrize("way", ["request", "salt", "log-probabilities"])
def test_what_shares_nothing_is_neither_remembered_nor_attracted(
    world: FakeClusterDriver, way: str
) -> None:
    def alone(wanted: GenerationRequest, number: int) -> GenerationRequest:
        if way == "request":
            return replace(wanted, prefix=PrefixSharing(enabled=False))
        if way == "salt":
            return replace(wanted, prefix=PrefixSharing(salt=f"tenant {number}"))
        return replace(wanted, prompt_logprobs=0)

    first = serve(world, ask(1))
    assert first.expected_cached == 0
    size = len(world.cluster.state.prefixes)
    for number in range(4):
        other = serve(world, alone(ask(1, length=200), number))
        assert (other.expected_cached, other.pull) == (0, PrefixPull.NONE)
    if way != "salt":
        assert len(world.cluster.state.prefixes) == size
    again = serve(world, replace(ask(1)))
    assert again.expected_cached == 192


def test_requests_of_one_salt_find_each_other(world: FakeClusterDriver) -> None:
    salted = [replace(ask(1), prefix=PrefixSharing(salt=salt)) for salt in ("s", "t", "s")]
    assert [serve(world, wanted).expected_cached for wanted in salted] == [0, 0, 192]


def test_a_model_without_prefix_caching_is_not_remembered() -> None:
    world = FakeClusterDriver()
    for node in NODES:
        world.add_worker(node)
    world.settle()
    spec = ModelSpec("a", "/a", prefix_caching=False)
    world.apply(events.DeployRequested(1, spec, 3, ()))
    world.settle()
    assert [serve(world, ask(1)).expected_cached for _ in range(3)] == [0, 0, 0]
    assert len(world.cluster.state.prefixes) == 0


def test_one_engine_alone_is_not_remembered() -> None:
    """There is nothing to choose, and nothing is paid for it."""
    world = FakeClusterDriver()
    world.add_worker("n0")
    world.settle()
    world.deploy("a")
    world.settle()
    assert [serve(world, ask(1)).chain for _ in range(3)] == [None, None, None]
    assert len(world.cluster.state.prefixes) == 0


def test_what_the_last_engine_does_is_remembered_for_when_others_are_back(
    world: FakeClusterDriver,
) -> None:
    kept, *lost = list(world.workers.values())
    for worker in lost:
        world.lose(worker)
    turns = [serve(world, ask(number)) for number in range(4)]
    for worker in lost:
        world.add_worker(worker.identity.node_id, batch=64)
    world.settle()
    for turn in turns:
        again = serve(world, follow_up(turn))
        assert (where(world, again), again.expected_cached) == (f"{kept.identity.node_id}/0", 208)
    assert world.cluster.state.statistics.prefix_followed.total() > 0


def test_a_lost_engine_is_forgotten_and_its_successor_keeps_nothing(
    world: FakeClusterDriver,
) -> None:
    first = serve(world, ask(1))
    [worker] = [w for w in world.workers.values() if w.epoch in _epochs(world, first)]
    world.lose(worker)
    world.add_worker(worker.identity.node_id, batch=64)
    world.settle()
    assert serve(world, ask(1)).expected_cached == 0


def test_a_model_that_was_unloaded_is_forgotten(world: FakeClusterDriver) -> None:
    serve(world, ask(1))
    world.undeploy("a")
    world.settle()
    assert not any(engine.prefixes for engine in world.cluster.state.engines.values())
    world.deploy("a", 3)
    world.settle()
    assert serve(world, ask(1)).expected_cached == 0


def test_what_a_worker_has_no_memory_for_is_forgotten(world: FakeClusterDriver) -> None:
    def report(blocks: int) -> None:
        for epoch in list(world.workers):
            memory = WorkerMemory(0, 0, 0, 0, 0, 0, prefix_device_bytes=blocks)
            world.apply(events.MemoryReported(epoch, memory))

    sequence = world.submit(ask(1))
    report(0)
    world.settle()
    assert sequence.finish, "it had not been computed when the worker counted"
    report(13)
    assert serve(world, ask(1)).expected_cached == 192
    report(0)
    assert serve(world, ask(1)).expected_cached == 0


def test_prefill_engines_keep_prompts_and_decode_engines_are_not_asked() -> None:
    world = FakeClusterDriver()
    for index, role in enumerate([EngineRole.PREFILL] * 2 + [EngineRole.DECODE] * 2):
        world.add_worker("n0", index, batch=64, role=role)
    world.settle()
    world.deploy("a")
    world.settle()
    turn = serve(world, ask(1))
    again = serve(world, follow_up(turn))
    accepted = notice_of(world, again, RequestChange.ACCEPTED)
    assert accepted.expected_cached_tokens == 192, "its answer was made elsewhere"
    assert notice_of(world, again, RequestChange.HANDED_OFF).expected_cached_tokens == 0
    kept = [e.role for e in world.cluster.state.engines.values() if e.prefixes]
    assert kept == [EngineRole.PREFILL]


def test_other_policies_remember_nothing() -> None:
    for routing in (RoutingPolicy.LEAST_OUTSTANDING, RoutingPolicy.ROUND_ROBIN):
        world = cluster(CoreConfig(routing=routing))
        assert [serve(world, ask(1)).expected_cached for _ in range(3)] == [0, 0, 0]
        assert len(world.cluster.state.prefixes) == 0


def test_watchers_are_told_why_an_engine_was_chosen(world: FakeClusterDriver) -> None:
    turn = serve(world, ask(1))
    serve(world, ask(2))  # else the next tie would lead there by itself
    again = serve(world, follow_up(turn))
    accepted = notice_of(world, again, RequestChange.ACCEPTED)
    assert accepted.reason.startswith("keeps 208 tokens, ")
    assert accepted.pull is PrefixPull.FOLLOWED
    assert accepted.expected_cached_tokens == 208
    finished = notice_of(world, again, RequestChange.FINISHED)
    assert (finished.reason, finished.pull) == ("", PrefixPull.NONE)
    plain = notice_of(world, turn, RequestChange.ACCEPTED)
    assert (plain.reason, plain.expected_cached_tokens) == ("fewest requests", 0)
    statistics = world.cluster.state.statistics
    assert (statistics.prefix_followed.total(), statistics.expected_cached_tokens) == (1, 208)


def notice_of(
    world: FakeClusterDriver, sequence: Sequence, change: RequestChange
) -> RequestChanged:
    [found] = [
        notice
        for notice in world.notices
        if isinstance(notice, RequestChanged)
        and notice.sequence_id == sequence.sequence_id
        and notice.change is change
    ]
    return found


def _epochs(world: FakeClusterDriver, sequence: Sequence) -> set[int]:
    return {
        c.epoch for c in world.sent if isinstance(c, AddSequence) and c.prompt is sequence.prompt
    }
