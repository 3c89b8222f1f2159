"""Who offers KV on its device, to whom, and what is shown of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from aegaeon.capability import OF_WORKER, Capability
from aegaeon_scheduler.core import commands
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.links import Link, Transport
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.values import EngineRole, FinishReason, KvSharing
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import FakeWorker

PREFILL, DECODE = EngineRole.PREFILL, EngineRole.DECODE
LENDS = KvSharing("gpu-0", frozenset({"gpu-0"}))
READS = KvSharing(readable=frozenset({"gpu-0", "gpu-1"}), obstacle="it is no prefill worker")
BLIND = KvSharing(readable=frozenset({"gpu-1"}))
OLD = KvSharing()
RANKS = KvSharing(obstacle="2 workers are one engine")


@dataclass
class Cluster:
    """Engines by node, role and what they share, with one model."""

    places: tuple[tuple[str, EngineRole, KvSharing], ...]
    policy: SchedulingPolicy = SchedulingPolicy.DEADLINE
    engines: list[FakeWorker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = FakeClusterDriver(CoreConfig(policy=self.policy))
        nodes = [node for node, _, _ in self.places]
        self.engines = [
            self.world.add_worker(
                node,
                nodes[:number].count(node),
                role=role,
                sharing=sharing,
                capabilities=OF_WORKER - {Capability.KV_OFFERS} if sharing == OLD else OF_WORKER,
            )
            for number, (node, role, sharing) in enumerate(self.places)
        ]
        self.world.settle()
        self.world.deploy("a", node_ids=tuple(sorted(set(nodes))))
        self.world.settle()
        self.state = self.world.cluster.state

    def serve(self, count: int = 4) -> None:
        sequences = [self.world.submit(request("a", (n,), 5)) for n in range(1, count + 1)]
        self.world.settle()
        assert all(sequence.finish is FinishReason.LENGTH for sequence in sequences)
        assert not self.world.slabs
        assert not any(e.held or e.ending for e in self.state.engines.values())
        assert self.state.statistics.handed_off == count

    @property
    def offered(self) -> set[bool]:
        """Whether turns for prefill asked for offers."""
        turns = [c for c in self.world.sent if isinstance(c, commands.QueueTurn) and c.stage]
        return {turn.on_device for turn in turns}

    @property
    def links(self) -> dict[Transport, Link]:
        return {link.transport: link for _, _, link in self.state.links.used()}


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_kv_goes_from_device_to_device_where_it_can(policy: SchedulingPolicy) -> None:
    cluster = Cluster((("n0", PREFILL, LENDS), ("n0", DECODE, READS)), policy)
    cluster.serve()
    assert cluster.offered == {True}
    assert [(t, link.transfers) for t, link in cluster.links.items()] == [(Transport.DEVICE, 4)]
    statistics = cluster.state.statistics
    assert statistics.imported_bytes == cluster.links[Transport.DEVICE].num_bytes > 0
    assert (statistics.fetched, statistics.recomputed) == (0, 0)


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        (RANKS, RANKS, "n0/0 does not lend its device: 2 workers are one engine"),
        (OLD, READS, "n0/0 does not lend its device: its release does not know how"),
        (LENDS, OLD, "n0/1 is of a release that reads no other device"),
        (LENDS, BLIND, "no engine for decoding can read the device of n0/0"),
    ],
)
def test_where_it_cannot_the_slabs_are_the_way_and_the_link_says_why(
    source: KvSharing, target: KvSharing, reason: str
) -> None:
    cluster = Cluster((("n0", PREFILL, source), ("n0", DECODE, target)))
    cluster.engines[1].refusal = "so that bytes are told"
    cluster.serve()
    assert cluster.offered == {False}
    [(transport, link)] = cluster.links.items()
    assert (transport, link.device_obstacle) == (Transport.SLABS, reason)


def test_a_reader_that_knows_no_offers_anywhere_rules_them_out() -> None:
    cluster = Cluster(
        (("n0", PREFILL, LENDS), ("n0", DECODE, READS), ("n1", DECODE, OLD)),
    )
    cluster.serve()
    assert cluster.offered == {False}


def test_what_is_refused_comes_from_the_slabs_and_the_link_says_why() -> None:
    cluster = Cluster((("n0", PREFILL, LENDS), ("n0", DECODE, READS)))
    cluster.engines[1].refusal = "no room on the device"
    cluster.serve()
    assert cluster.offered == {True}
    [(transport, link)] = cluster.links.items()
    assert (transport, link.device_obstacle) == (Transport.SLABS, "no room on the device")
    assert link.transfers == 4


def test_an_offer_goes_over_the_wire_to_another_node() -> None:
    cluster = Cluster((("n0", PREFILL, LENDS), ("n0", DECODE, READS), ("n1", DECODE, READS)))
    sequence = cluster.world.submit(request("a", (1,), 6))
    near, far = cluster.engines[1], cluster.engines[2]
    while sequence.source is None:
        prefill = cluster.engines[0]
        while prefill.inbox:
            prefill.take()
        cluster.world.now_ns += prefill.step()
        cluster.world.deliver(prefill, len(prefill.outbox))
    assert sequence.engine_id == near.identity.engine_id
    cluster.world.lose(near)
    assert sequence.engine_id == far.identity.engine_id
    cluster.world.settle()
    assert sequence.finish is FinishReason.LENGTH
    assert list(cluster.links) == [Transport.WIRE]
    assert cluster.state.statistics.fetched == 1
