"""The published policy: groups of prompts, rounds of decoding turns, quotas by its formula."""

from __future__ import annotations

from typing import get_args

from aegaeon.config.schema import SchedulingPolicyName
from aegaeon_scheduler.core import commands
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.decode_rounds import MAX_QUOTA_NS
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.prefill_groups import MAX_GROUP
from aegaeon_scheduler.core.quota import round_quotas
from aegaeon_scheduler.core.values import EngineRole, FinishReason, TurnStage
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import MS, FakeWorker

LONG = 1_000
P, D, S = EngineRole.PREFILL, EngineRole.DECODE, EngineRole.SIMPLE


PUBLISHED = CoreConfig(policy=SchedulingPolicy.PUBLISHED)


def world_of(
    *roles: EngineRole, batch: int = 16, config: CoreConfig = PUBLISHED
) -> tuple[FakeClusterDriver, list[FakeWorker]]:
    world = FakeClusterDriver(config)
    workers = [
        world.add_worker("n0", index, role=role, batch=batch) for index, role in enumerate(roles)
    ]
    world.settle()
    for model in ("a", "b", "c"):
        world.deploy(model)
    world.settle()
    return world, workers


def run(world: FakeClusterDriver, worker: FakeWorker, steps: int = 1) -> None:
    for _ in range(steps):
        while worker.inbox:
            worker.take()
        world.now_ns += worker.step()
        world.deliver(worker, len(worker.outbox))


def turns_of(world: FakeClusterDriver, worker: FakeWorker) -> list[commands.QueueTurn]:
    """Every turn that the worker has been sent."""
    return [
        command
        for command in world.sent
        if isinstance(command, commands.QueueTurn) and command.epoch == worker.epoch
    ]


def test_groups_are_of_eight_at_most_and_run_in_order_of_arrival() -> None:
    world, (prefill, _) = world_of(P, D)
    for number in range(MAX_GROUP + 3):
        world.submit(request("a", (number + 1,), 2))
        if number == 4:
            world.submit(request("b", (number + 1,), 2))
    world.settle()
    turns = turns_of(world, prefill)
    assert [turn.model for turn in turns] == ["a", "b", "a"]
    assert all(turn.stage is TurnStage.PREFILL and not turn.quota_ns for turn in turns)
    joined = {turn.turn_id: set(turn.handles) for turn in turns}
    for command in world.sent:
        if isinstance(command, commands.JoinTurn) and command.epoch == prefill.epoch:
            joined[command.turn_id] |= set(command.handles)
    assert [len(joined[turn.turn_id]) for turn in turns] == [MAX_GROUP, 1, 3]


def test_a_new_group_goes_to_the_prefill_engine_with_the_least_load() -> None:
    world, _ = world_of(P, P, D)
    first = [world.submit(request("a", (1,), 2)) for _ in range(3)]
    second = [world.submit(request("b", (1,), 2)) for _ in range(2)]
    third = world.submit(request("c", (1,), 2))
    assert {sequence.engine_id for sequence in first} == {"n0/0"}
    assert {sequence.engine_id for sequence in second} == {"n0/1"}
    assert third.engine_id == "n0/1"  # two prompts are less than three


def test_a_model_decodes_on_the_engine_that_has_its_batch() -> None:
    world, (prefill, *_) = world_of(P, D, D)
    sequences = [world.submit(request(model, (1,), LONG)) for model in ("a", "b", "a")]
    for _ in range(8):
        run(world, prefill)
    assert [sequence.engine_id for sequence in sequences] == ["n0/1", "n0/2", "n0/1"]


def test_every_batch_has_one_turn_a_round_with_the_published_quota() -> None:
    world, (prefill, decode) = world_of(P, D)
    for model in ("a", "b", "c"):
        world.submit(request(model, (1,), LONG))
    for _ in range(400):
        run(world, prefill)
        run(world, decode)
    turns = turns_of(world, decode)[6:]
    models = [turn.model for turn in turns]
    assert len(models) > 5
    assert all(len(set(models[i : i + 3])) == 3 for i in range(len(models) - 2))
    engine = world.cluster.state.engines[decode.epoch]
    state = world.cluster.state
    batches = state.planner.batches(engine)
    expected = round_quotas(
        [
            engine.estimator.step_ns(
                batch.model,
                len(batch.members),
                sum(len(s.prompt) + len(s.generated) for s in batch.members.values()),
            )
            for batch in batches
        ],
        sum(engine.estimator.switch_ns(batch.model) for batch in batches),
        [state.config.tpot_slo_ns] * 3,
        MAX_QUOTA_NS,
    )
    assert abs(turns[-1].quota_ns - expected[0]) < 0.1 * expected[0]


def test_a_batch_that_is_alone_has_no_quota_until_another_comes() -> None:
    world, (prefill, decode) = world_of(P, D)
    world.submit(request("a", (1,), LONG))
    for _ in range(5):
        run(world, prefill)
    run(world, decode, 5)
    assert [turn.quota_ns for turn in turns_of(world, decode)] == [0]
    world.submit(request("b", (1,), LONG))
    for _ in range(5):
        run(world, prefill)
    limits = [command for command in world.sent if isinstance(command, commands.LimitTurn)]
    assert [limit.epoch for limit in limits] == [decode.epoch]
    assert limits[0].quota_ns > 0


def test_batches_of_a_model_that_fit_together_are_merged_at_the_top_of_a_round() -> None:
    world, (prefill, decode) = world_of(P, D, batch=2)
    counts = (30, LONG, 30, LONG)  # two batches of two, of which one each will be left
    sequences = [world.submit(request("a", (n + 1,), count)) for n, count in enumerate(counts)]
    world.submit(request("b", (9,), LONG))
    engine = world.cluster.state.engines[decode.epoch]
    seen = []
    for _ in range(300):
        run(world, prefill)
        run(world, decode)
        seen.append([b.model for b in world.cluster.state.planner.batches(engine)].count("a"))
    assert max(seen) == 2
    assert seen[-1] == 1
    assert [s.finish for s in sequences if s.ended] == [FinishReason.LENGTH] * 2


def test_an_engine_for_both_stages_gives_prompts_their_first_token_first() -> None:
    world, (simple,) = world_of(S)
    first = world.submit(request("a", (1,), LONG))
    run(world, simple, 30)
    assert len(first.generated) > 10
    later = [world.submit(request(model, (2,), LONG)) for model in ("b", "c", "a")]
    run(world, simple, 30)
    models = [turn.model for turn in turns_of(world, simple)]
    assert models[:5] == ["a", "a", "b", "c", "a"]  # ahead of what is decoded: three groups
    world.settle()
    assert all(s.finish is FinishReason.LENGTH for s in [first, *later])
    assert all(turn.stage is TurnStage.WHOLE for turn in turns_of(world, simple))


def test_clients_know_every_policy_by_its_name() -> None:
    assert list(get_args(SchedulingPolicyName)) == [policy.value for policy in SchedulingPolicy]


def test_prompts_without_end_do_not_keep_an_engine_from_decoding() -> None:
    config = CoreConfig(policy=SchedulingPolicy.PUBLISHED, max_wait_ns=200 * MS)
    world, (simple,) = world_of(S, config=config)
    first = world.submit(request("a", (1,), LONG))
    run(world, simple, 4)
    made = []
    for number in range(150):  # a turn takes three rounds, and takes in eight prompts
        for model in ("b", "b", "c", "c"):
            world.submit(request(model, (number + 2,), 1))
        run(world, simple)
        made.append(len(first.generated))
    assert made[-1] > made[100] > made[50]
