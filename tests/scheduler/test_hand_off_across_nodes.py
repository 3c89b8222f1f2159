"""A sequence goes on at a decode engine of another node, which fetches its KV first."""

from __future__ import annotations

import pytest

from aegaeon_scheduler.core import commands, events, requests
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.links import Link, Links
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import EngineRole, FinishReason
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import MS, FakeWorker

PREFILL, DECODE = EngineRole.PREFILL, EngineRole.DECODE
#: Prefill on n0, decoding on n1 and n2.
APART = (("n0", PREFILL), ("n1", DECODE), ("n1", DECODE), ("n2", DECODE))


class Apart:
    """Engines on several nodes, each with models ``a`` and ``b``."""

    def __init__(
        self,
        places: tuple[tuple[str, EngineRole], ...] = APART,
        policy: SchedulingPolicy = SchedulingPolicy.DEADLINE,
        gap: int = 0,
    ) -> None:
        self.world = FakeClusterDriver(CoreConfig(policy=policy, stealing_min_batch_gap=gap))
        nodes = [node for node, _ in places]
        self.engines = [
            self.world.add_worker(node, nodes[:number].count(node), role=role)
            for number, (node, role) in enumerate(places)
        ]
        self.world.settle()
        for model in ("a", "b"):
            self.world.deploy(model, node_ids=tuple(sorted(set(nodes))))
        self.world.settle()
        self.state = self.world.cluster.state

    def run(self, worker: FakeWorker, steps: int = 1) -> None:
        for _ in range(steps):
            while worker.inbox:
                worker.take()
            self.world.now_ns += worker.step()
            self.world.deliver(worker, len(worker.outbox))

    def handed_off(self, model: str = "a", count: int = 6) -> Sequence:
        """A sequence that has gone to its decode engine, which has not heard of it yet."""
        sequence = self.world.submit(request(model, (5,), count))
        self.run(self.engines[0], 3)
        assert sequence.source is not None
        return sequence

    def engine_of(self, sequence: Sequence) -> FakeWorker:
        return next(e for e in self.engines if e.identity.engine_id == sequence.engine_id)

    def finish(self, *sequences: Sequence) -> None:
        """Everything comes to its end, and nothing is held for anybody."""
        self.world.settle()
        for sequence in sequences:
            assert sequence.finish is FinishReason.LENGTH
            assert len(sequence.generated) == sequence.stop.max_new_tokens
        assert not self.world.slabs
        assert not any(e.held or e.ending for e in self.state.engines.values())


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_every_sequence_is_fetched_and_goes_on(policy: SchedulingPolicy) -> None:
    apart = Apart(policy=policy)
    sequences = [
        apart.world.submit(request(model, (number,), 5))
        for number in range(1, 5)
        for model in ("a", "b")
    ]
    apart.finish(*sequences)
    statistics = apart.state.statistics
    assert statistics.handed_off == statistics.fetched == len(sequences)
    assert (statistics.recomputed, statistics.fetch_interruptions) == (0, 0)
    assert {target for _, target, _ in apart.state.links.used()} <= {"n1", "n2"}
    moved = [text for text in apart.world.outputs if "KvMoved" in text]
    assert len(moved) == len(sequences)


def test_nobody_but_prefill_engines_gets_new_requests() -> None:
    apart = Apart()
    sequence = apart.world.submit(request("a", (5,), 6))
    assert sequence.engine_id == "n0/0"
    apart.world.lose(apart.engines[0])
    assert sequence.engine_id in ("n1/0", "n1/1", "n2/0")
    apart.finish(sequence, apart.world.submit(request("b", (5,), 6)))


def test_a_turn_waits_for_the_kv() -> None:
    apart = Apart()
    sequence = apart.handed_off()
    decode = apart.engine_of(sequence)
    assert [type(command) for command in decode.inbox] == [commands.AddSequence]
    apart.run(decode)
    assert any(isinstance(command, commands.QueueTurn) for command in decode.inbox)
    apart.finish(sequence)


def test_what_came_is_in_the_link_s_books() -> None:
    apart = Apart()
    sequence = apart.handed_off()
    target = apart.engine_of(sequence).identity.node_id
    apart.finish(sequence)
    [(source, found, link)] = apart.state.links.used()
    assert (source, found) == ("n0", target)
    assert (link.transfers, link.num_bytes, link.time_ns) == (1, 1_000, MS)
    assert link.interruptions == 0


def test_the_pace_of_a_link_is_that_of_large_transfers_and_survives_a_reset() -> None:
    link = Links().between("n0", "n1")
    link.measured(1_000, 1_000 * MS)
    assert link.bytes_per_s == 0
    assert link.expected_ns(1_000_000_000, 0) == pytest.approx(1_001 * MS)
    link.measured(10_000_000, 5 * MS)
    assert link.bytes_per_s == pytest.approx(2e9)
    assert link.expected_ns(1_000_000_000, 0) == pytest.approx(501 * MS)
    link.reset()
    assert (link.transfers, link.num_bytes, link.time_ns) == (0, 0, 0)
    assert link.bytes_per_s == pytest.approx(2e9)


@pytest.mark.parametrize("lost", ["source", "target"])
@pytest.mark.parametrize("fetched", [False, True])
def test_a_loss_during_or_after_a_transfer_loses_no_sequence(lost: str, fetched: bool) -> None:
    apart = Apart()
    sequence = apart.handed_off()
    target = apart.engine_of(sequence)
    if fetched:
        apart.run(target)
    apart.world.lose(apart.engines[0] if lost == "source" else target)
    apart.finish(sequence)
    if lost == "target":  # the source still had it
        assert sum(worker.imported for worker in apart.engines) == 1
        assert apart.state.statistics.recomputed == 0


def test_a_transfer_that_fails_costs_a_computation_only() -> None:
    apart = Apart()
    for worker in apart.engines:
        worker.wire = False
    sequence = apart.handed_off()
    apart.finish(sequence)
    assert apart.state.statistics.recomputed == 1
    assert apart.state.statistics.fetch_interruptions == 1


def test_a_worker_that_knows_nothing_of_fetching_computes_in_the_end() -> None:
    apart = Apart(APART[:2])
    apart.engines[1].old = True
    sequence = apart.handed_off()
    apart.world.settle()
    assert not sequence.ended
    apart.world.pass_time(119_000 * MS)
    assert sequence.fetched_from
    apart.world.pass_time(2_000 * MS)
    apart.finish(sequence)
    assert apart.state.statistics.recomputed == 1


@pytest.mark.parametrize("steps", range(5))
def test_cancelling_at_any_point_frees_what_is_held(steps: int) -> None:
    apart = Apart()
    sequence = apart.handed_off()
    target = apart.engine_of(sequence)
    apart.run(target, steps)
    apart.world.apply(events.CancelRequested(sequence.sequence_id))
    apart.finish()
    assert sequence.finish is FinishReason.CANCELLED
    assert not target.sequences


def test_a_paused_reader_s_sequence_waits_for_both() -> None:
    apart = Apart()
    sequence = apart.handed_off()
    engine = next(e for e in apart.state.engines.values() if e.engine_id == sequence.engine_id)
    requests.pause(apart.state, sequence)
    apart.run(apart.engine_of(sequence))
    assert sequence.handle in engine.queues["a"].paused
    apart.world.apply(events.ReaderCaughtUp(sequence.sequence_id))
    assert not engine.queues["a"].paused
    apart.finish(sequence)


def slow_down(link: Link, ms_per_byte: int) -> None:
    """What a link carries from now on takes so long; a fake's KV has a byte."""
    link.measured(1 << 20, (1 << 20) * ms_per_byte * MS)


def test_the_faster_of_two_links_is_taken() -> None:
    apart = Apart(APART[:2] + APART[3:])
    slow_down(apart.state.links.between("n0", "n1"), 1_000)
    slow_down(apart.state.links.between("n0", "n2"), 10)
    for _ in range(3):
        sequence = apart.handed_off()
        assert sequence.engine_id == "n2/0"
        apart.finish(sequence)


def test_a_link_that_broke_is_avoided_for_a_while() -> None:
    apart = Apart(APART[:2] + APART[3:])
    link = apart.state.links.between("n0", "n1")
    link.interrupted(1, apart.world.now_ns)
    sequence = apart.handed_off()
    assert sequence.engine_id == "n2/0"
    apart.finish(sequence)
    assert link.expected_ns(1, apart.world.now_ns + 40_000 * MS) < 2 * MS


NEAR = (("n0", PREFILL), ("n0", DECODE), ("n1", DECODE))


@pytest.mark.parametrize(("transfer_ms", "engine"), [(10, "n1/0"), (10_000, "n0/1")])
def test_kv_stays_on_its_node_unless_another_one_would_be_sooner(
    transfer_ms: int, engine: str
) -> None:
    apart = Apart(NEAR)
    slow_down(apart.state.links.between("n0", "n1"), transfer_ms)
    near = apart.handed_off(count=400)
    assert near.engine_id == "n0/1"
    apart.run(apart.engines[1], 3)
    # The engine beside it is busy with one model now, the other one with none.
    far = apart.handed_off("b", 400)
    assert far.engine_id == engine
    apart.finish(near, far)


def test_the_published_policy_stays_on_the_node() -> None:
    apart = Apart(NEAR, SchedulingPolicy.PUBLISHED)
    sequences = [apart.world.submit(request(m, (5,), 40)) for m in ("a", "b", "a", "b")]
    apart.finish(*sequences)
    assert apart.state.statistics.fetched == 0


def test_a_node_that_is_drained_gets_nothing_from_others() -> None:
    apart = Apart(APART[:2])
    sequence = apart.handed_off(count=50)
    apart.run(apart.engines[1], 4)
    apart.world.apply(events.UndeployRequested(99, "a", ("n1",)))
    later = apart.world.submit(request("a", (9,), 6))
    apart.finish(sequence, later)
    assert apart.state.statistics.handed_off == 1


def test_an_idle_engine_steals_what_another_one_has_fetched_and_fetches_it_again() -> None:
    apart = Apart(APART[:2], SchedulingPolicy.PUBLISHED, gap=2)
    apart.world.deploy("c", node_ids=("n0", "n1"))
    apart.world.settle()
    prefill, victim = apart.engines
    sequences = [apart.world.submit(request(m, (5,), 400)) for m in ("a", "b", "c")]
    while any(s.prefilled_on == "" for s in sequences):
        apart.run(prefill)
        apart.run(victim)
    apart.run(victim, 2)
    thief = apart.world.add_worker("n1", 1, role=DECODE)
    for _ in range(3):
        apart.run(thief)
    assert apart.state.statistics.stolen_batches == 1
    apart.finish(*sequences)
    assert thief.imported == 1
    assert apart.state.statistics.recomputed == 0
