"""The working set: never more than the device and the time per token hold."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from aegaeon_scheduler.core import working_set
from aegaeon_scheduler.core.assignment import LeastWork
from aegaeon_scheduler.core.engine import Engine, Turn
from aegaeon_scheduler.core.turns import Plan, TurnPlanner
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import MS

SECOND = 1_000 * MS
MODELS = "abcdefgh"


class NoTurns:
    """A policy that leaves engines alone."""

    def plan(self, engine: Engine, now_ns: int) -> Plan:
        return Plan([], {turn.model: 0 for turn in engine.turns}, "")


def engine_with(counts: list[int], pool_bytes: int, tpot_ns: int = 100 * MS) -> Engine:
    """An engine with so many sequences of each model, and nothing on its device."""
    world = FakeClusterDriver()
    worker = world.add_worker(batch=64)
    world.settle()
    for model in MODELS[: len(counts)]:
        world.deploy(model)
    world.settle()
    engine = world.cluster.state.engines[worker.epoch]
    world.cluster.state.planner = TurnPlanner(NoTurns(), LeastWork(8))
    for model, count in zip(MODELS, counts, strict=False):
        for _ in range(count):
            world.submit(request(model, count=1_900, tpot_slo_ns=tpot_ns))
    device = replace(engine.identity.device, pool_bytes=pool_bytes)
    engine.identity = replace(engine.identity, device=device)
    return engine


def begin(engine: Engine, model: str, now_ns: int, switched: bool = False) -> None:
    """Let a turn of a model begin and end."""
    turn = Turn(now_ns + 1, model, 0, engine.draw(model, 64))
    engine.turns.append(turn)
    engine.begin(turn, switched, now_ns)
    engine.end_turn(turn, now_ns)


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    pool_bytes=st.integers(400, 6_000),
    tpot_ns=st.sampled_from([100_000, 5 * MS, 100 * MS]),
    data=st.data(),
)
def test_members_fit_the_device_and_the_shortest_time_per_token(
    counts: list[int], pool_bytes: int, tpot_ns: int, data: st.DataObject
) -> None:
    engine = engine_with(counts, pool_bytes, tpot_ns)
    models = list(engine.queues)
    for now_ns, model in enumerate(data.draw(st.lists(st.sampled_from(models), max_size=12))):
        begin(engine, model, now_ns)
        assert sum(engine.on_device.values()) <= pool_bytes or len(engine.on_device) == 1
    found = working_set.choose(engine, SECOND)
    members = found.members.queues
    assert {q.model for q in members} <= set(engine.on_device)
    everyone = [*members, *([found.entrant] if found.entrant else []), *found.outside]
    assert sorted(q.model for q in everyone) == sorted(models)
    if len(members) > 1:
        needed = sum(q.weight_bytes + q.kv_bytes for q in members)
        assert needed <= pool_bytes
        assert sum(engine.step_ns(q.model) for q in members) <= 0.8 * tpot_ns
        turns = [found.members.turn_ns(q) for q in members]
        assert all(turn >= 1 for turn in turns)
        for index, queue in enumerate(members):
            others = (
                sum(turns)
                - turns[index]
                + sum(engine.step_ns(q.model) for q in members if q is not queue)
            )
            if min(turns) > 1:
                assert others + engine.step_ns(queue.model) <= 0.7 * tpot_ns + len(members)


def test_the_most_urgent_model_joins_next_and_keeps_its_place_while_it_is_fetched() -> None:
    engine = engine_with([1, 1, 1], 10_000)
    begin(engine, "a", 0)
    first = working_set.choose(engine, 0)
    assert first.entrant is not None
    assert (first.entrant.model, first.entrant_in_ns > 0) == ("b", True)
    engine.fetching, engine.fetching_since_ns = "c", 0
    assert working_set.choose(engine, 0).entrant is engine.queues["c"]
    assert working_set.choose(engine, 3_600 * SECOND).entrant_in_ns == 0


def test_an_unexpected_switch_tells_that_the_device_holds_less_than_was_believed() -> None:
    engine = engine_with([1, 1, 1], 10_000)
    for model in "abc":
        begin(engine, model, 0, switched=True)
    assert list(engine.on_device) == ["a", "b", "c"]
    begin(engine, "a", 1, switched=True)
    assert list(engine.on_device) == ["c", "a"]


def test_kv_of_models_outside_is_not_room_for_others() -> None:
    engine = engine_with([1, 1], 1_000)
    begin(engine, "a", 0)
    assert working_set.choose(engine, 0).entrant is engine.queues["b"]
    engine.queues["a"].tokens = 700
    assert working_set.choose(engine, 0).entrant is None
