"""An idle decode engine takes a whole batch that has never run from a loaded one of its node."""

from __future__ import annotations

import pytest

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import EngineRole, FinishReason
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import FakeWorker

MODELS = ("a", "b", "c", "d")
LONG = 400


class Loaded:
    """A decode engine with a batch of each model, while the other one was away until now."""

    def __init__(self, policy: SchedulingPolicy, models: int, gap: int = 2) -> None:
        config = CoreConfig(policy=policy, stealing_min_batch_gap=gap)
        self.world = FakeClusterDriver(config)
        self.world.add_worker("n0", 0, role=EngineRole.PREFILL)
        self.victim = self.world.add_worker("n0", 1, role=EngineRole.DECODE)
        self.world.settle()
        for model in MODELS:
            self.world.deploy(model)
        self.world.settle()
        self.sequences = [
            self.world.submit(request(model, (number,), LONG))
            for model in MODELS[:models]
            for number in (1, 2)
        ]
        prefill = self.world.workers[1]
        while any(s.prefilled_on == "" for s in self.sequences):
            run(self.world, prefill)
            run(self.world, self.victim)
        self.statistics = self.world.cluster.state.statistics

    def add_thief(self) -> FakeWorker:
        """Another decode engine comes, with all models."""
        thief = self.world.add_worker("n0", 2, role=EngineRole.DECODE)
        for _ in range(3):
            run(self.world, thief)
        return thief

    def on(self, worker: FakeWorker) -> list[Sequence]:
        return [s for s in self.sequences if s.engine_id == worker.identity.engine_id]


def run(world: FakeClusterDriver, worker: FakeWorker) -> None:
    while worker.inbox:
        worker.take()
    world.now_ns += worker.step()
    world.deliver(worker, len(worker.outbox))


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_one_whole_batch_moves_with_its_kv(policy: SchedulingPolicy) -> None:
    loaded = Loaded(policy, models=4)
    thief = loaded.add_thief()
    stolen = loaded.on(thief)
    assert len(stolen) == 2
    assert {sequence.model for sequence in stolen} == {stolen[0].model}
    assert (loaded.statistics.stolen_batches, loaded.statistics.stolen_sequences) == (1, 2)
    assert all(sequence.source is not None for sequence in stolen)
    loaded.world.settle()
    assert all(sequence.finish is FinishReason.LENGTH for sequence in loaded.sequences)
    assert thief.imported >= 2
    assert loaded.statistics.recomputed == 0
    assert not loaded.world.slabs


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_what_a_turn_has_named_stays(policy: SchedulingPolicy) -> None:
    loaded = Loaded(policy, models=2)
    loaded.add_thief()
    assert loaded.statistics.stolen_batches == 0


def test_nothing_moves_below_the_gap() -> None:
    loaded = Loaded(SchedulingPolicy.PUBLISHED, models=4, gap=5)
    loaded.add_thief()
    assert loaded.statistics.stolen_batches == 0


def test_nothing_moves_unless_it_is_switched_on() -> None:
    loaded = Loaded(SchedulingPolicy.PUBLISHED, models=4, gap=0)
    loaded.add_thief()
    assert loaded.statistics.stolen_batches == 0


def test_an_engine_that_becomes_idle_takes_the_next_batch() -> None:
    loaded = Loaded(SchedulingPolicy.PUBLISHED, models=4)
    thief = loaded.add_thief()
    for sequence in loaded.on(thief):
        loaded.world.apply(events.CancelRequested(sequence.sequence_id))
    assert loaded.statistics.stolen_batches == 2


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_loss_after_the_theft_loses_no_sequence(lost: int) -> None:
    loaded = Loaded(SchedulingPolicy.PUBLISHED, models=4)
    loaded.add_thief()
    loaded.world.lose(list(loaded.world.workers.values())[lost])
    loaded.world.settle()
    assert all(sequence.finish is FinishReason.LENGTH for sequence in loaded.sequences)
    assert not loaded.world.slabs


def test_a_stolen_sequence_can_be_cancelled() -> None:
    loaded = Loaded(SchedulingPolicy.PUBLISHED, models=4)
    thief = loaded.add_thief()
    stolen = loaded.on(thief)[0]
    loaded.world.apply(events.CancelRequested(stolen.sequence_id))
    loaded.world.settle()
    assert stolen.finish is FinishReason.CANCELLED
    assert not loaded.world.slabs
    cancels = [text for text in loaded.world.outputs if text.startswith("CancelSequences")]
    assert len(cancels) == 2  # once at the loser, once at the winner


def test_the_loser_forgets_what_it_lost() -> None:
    loaded = Loaded(SchedulingPolicy.PUBLISHED, models=4)
    known = set(loaded.victim.sequences)
    loaded.add_thief()
    named = {
        handle
        for command in loaded.victim.inbox
        if isinstance(command, commands.CancelSequences)
        for handle in command.handles
    }
    assert len(named) == 2
    loaded.world.settle()
    assert named <= known
    assert not any(engine.ending for engine in loaded.world.cluster.state.engines.values())
