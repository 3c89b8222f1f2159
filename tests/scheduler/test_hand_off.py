"""A prefill engine takes a sequence to its first token, and a decode engine of the node goes on."""

from __future__ import annotations

import pytest

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import EngineRole, FinishReason, TurnStage
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import FakeWorker

ROLES = (EngineRole.PREFILL, EngineRole.DECODE, EngineRole.DECODE)


class Dedicated:
    """One node of a prefill and one or two decode engines, with models ``a`` and ``b``."""

    def __init__(
        self, engines: int = 2, policy: SchedulingPolicy = SchedulingPolicy.DEADLINE
    ) -> None:
        self.world = FakeClusterDriver(CoreConfig(policy=policy))
        self.engines = [
            self.world.add_worker("n0", index, role=ROLES[index]) for index in range(engines)
        ]
        self.world.settle()
        for model in ("a", "b"):
            self.world.deploy(model)
        self.world.settle()
        self.statistics = self.world.cluster.state.statistics

    @property
    def prefill(self) -> FakeWorker:
        return self.engines[0]

    @property
    def decode(self) -> FakeWorker:
        return self.engines[1]

    def run(self, worker: FakeWorker, steps: int) -> None:
        """Let one worker do its next things, and the core hear of them."""
        for _ in range(steps):
            while worker.inbox:
                worker.take()
            self.world.now_ns += worker.step()
            self.world.deliver(worker, len(worker.outbox))

    def handed_off(self, count: int = 6) -> Sequence:
        """A sequence that has gone to its decode engine, which has not heard of it yet."""
        sequence = self.world.submit(request("a", (5,), count))
        self.run(self.prefill, 3)
        assert sequence.source is not None
        return sequence

    def finish(self, sequence: Sequence) -> None:
        """Everything comes to its end, and nothing is held for anybody."""
        self.world.settle()
        assert sequence.finish is FinishReason.LENGTH
        assert len(sequence.generated) == sequence.stop.max_new_tokens
        assert not self.world.slabs
        assert not any(e.held for e in self.world.cluster.state.engines.values())


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_every_sequence_goes_from_the_prefill_to_a_decode_engine(policy: SchedulingPolicy) -> None:
    dedicated = Dedicated(3, policy)
    sequences = [
        dedicated.world.submit(request(model, (number,), 5))
        for number in range(1, 5)
        for model in ("a", "b")
    ]
    for sequence in sequences:
        dedicated.finish(sequence)
    assert dedicated.statistics.handed_off == len(sequences)
    assert dedicated.statistics.recomputed == 0
    assert sum(worker.imported for worker in dedicated.engines) == len(sequences)
    assert dedicated.prefill.imported == 0


def test_a_turn_of_a_prefill_engine_ends_at_the_first_token() -> None:
    dedicated = Dedicated()
    dedicated.world.submit(request("a", (5,), 6))
    turn = dedicated.prefill.inbox[-1]
    assert isinstance(turn, commands.QueueTurn)
    assert turn.stage is TurnStage.PREFILL
    dedicated.world.settle()
    assert dedicated.world.cluster.state.engines[1].token_count == 1


def test_a_sequence_of_one_token_never_leaves_the_prefill_engine() -> None:
    dedicated = Dedicated()
    dedicated.finish(dedicated.world.submit(request("a", (5,), 1)))
    assert dedicated.statistics.handed_off == 0
    assert not dedicated.decode.made


def test_without_room_in_the_slabs_a_decode_engine_computes_again() -> None:
    dedicated = Dedicated()
    dedicated.prefill.room = False
    sequence = dedicated.world.submit(request("a", (5,), 6))
    dedicated.finish(sequence)
    assert dedicated.statistics.handed_off == dedicated.statistics.recomputed == 1
    assert dedicated.decode.made


def test_a_prefill_engine_lost_after_the_hand_off_costs_a_computation_only() -> None:
    dedicated = Dedicated()
    sequence = dedicated.handed_off()
    dedicated.world.lose(dedicated.prefill)
    assert sequence.source is None
    dedicated.finish(sequence)
    assert dedicated.statistics.recovered == 0
    assert dedicated.decode.imported == 0


def test_a_decode_engine_lost_before_it_copied_leaves_the_kv_to_another() -> None:
    dedicated = Dedicated(3)
    sequence = dedicated.handed_off()
    dedicated.world.lose(dedicated.decode)
    assert sequence.engine_id == "n0/2"
    dedicated.finish(sequence)
    assert dedicated.engines[2].imported == 1
    assert dedicated.statistics.handed_off == 1


def test_a_decode_engine_lost_later_sends_its_sequences_through_prefill_again() -> None:
    dedicated = Dedicated(3)
    sequence = dedicated.handed_off()
    dedicated.run(dedicated.decode, 3)
    assert len(sequence.generated) > 1
    dedicated.world.lose(dedicated.decode)
    assert sequence.engine_id == "n0/0"
    dedicated.finish(sequence)
    assert dedicated.statistics.handed_off == 2


@pytest.mark.parametrize("steps", range(6))
def test_cancelling_at_any_point_frees_what_is_held(steps: int) -> None:
    dedicated = Dedicated()
    sequence = dedicated.world.submit(request("a", (5,), 9))
    for step in range(steps):
        dedicated.run(dedicated.prefill if step < 3 else dedicated.decode, 1)
    dedicated.world.apply(events.CancelRequested(sequence.sequence_id))
    dedicated.world.settle()
    assert sequence.finish is FinishReason.CANCELLED
    assert not dedicated.world.slabs
    assert not any(worker.sequences for worker in dedicated.engines)
    state = dedicated.world.cluster.state
    assert not any(engine.held or engine.ending for engine in state.engines.values())


def test_the_last_engine_of_a_node_does_both_stages() -> None:
    for lost in (0, 1):
        dedicated = Dedicated()
        sequence = dedicated.handed_off()
        dedicated.world.lose(dedicated.engines[lost])
        later = dedicated.world.submit(request("b", (7,), 4))
        dedicated.finish(sequence)
        dedicated.finish(later)


def test_a_prefill_engine_hands_off_again_once_a_decode_engine_is_back() -> None:
    dedicated = Dedicated()
    dedicated.world.lose(dedicated.decode)
    sequence = dedicated.world.submit(request("a", (5,), 50))
    dedicated.run(dedicated.prefill, 4)
    assert len(sequence.generated) > 1
    dedicated.world.add_worker("n0", 1, role=EngineRole.DECODE)
    dedicated.finish(sequence)
    assert dedicated.statistics.handed_off == 1


def test_a_model_is_ready_once_both_stages_have_it() -> None:
    world = FakeClusterDriver()
    for index in range(2):
        world.add_worker("n0", index, role=ROLES[index])
    world.settle()
    operation = world.deploy("a")
    world.answer_inspection()
    prefill, decode = world.workers.values()
    prefill.take()
    world.deliver(prefill)
    assert operation not in world.results
    decode.take()
    world.deliver(decode)
    assert operation in world.results


def test_a_draining_model_finishes_what_a_prefill_engine_has_begun() -> None:
    dedicated = Dedicated()
    sequence = dedicated.world.submit(request("a", (5,), 6))
    dedicated.run(dedicated.prefill, 1)
    dedicated.world.undeploy("a")
    dedicated.finish(sequence)
    assert dedicated.statistics.handed_off == 1
    assert "a" not in dedicated.world.cluster.state.models


def test_a_paused_sequence_waits_for_its_reader_at_the_decode_engine() -> None:
    world = FakeClusterDriver(CoreConfig(reader_backlog_tokens=1))
    for index in range(2):
        world.add_worker("n0", index, role=ROLES[index])
    world.settle()
    world.deploy("a")
    world.settle()
    sequence = world.submit(request("a", (5,), 4))
    world.settle(read=False)
    assert (sequence.engine_id, len(sequence.generated)) == ("n0/1", 1)
    world.settle()
    assert sequence.finish is FinishReason.LENGTH
