"""Sequences run on engines only that understand what they ask for, in every mixture of releases."""

from __future__ import annotations

import pytest

from aegaeon.capability import NO_CAPABILITIES, OF_WORKER, Capabilities, Capability
from aegaeon.errors import AegaeonError, ErrorReason
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.values import EngineRole, FinishReason
from tests.scheduler.fake_cluster import FakeClusterDriver, request
from tests.scheduler.fake_worker import FakeWorker

PREFILL, DECODE, SIMPLE = EngineRole.PREFILL, EngineRole.DECODE, EngineRole.SIMPLE
OLDER, NEWER = NO_CAPABILITIES, OF_WORKER
RECOVERY_NS = 5_000_000_000


class Mixture:
    """A model on engines of the given roles and releases: of one node, or each of its own."""

    def __init__(
        self,
        *engines: tuple[EngineRole, Capabilities],
        policy: SchedulingPolicy = SchedulingPolicy.DEADLINE,
        nodes: bool = False,
    ) -> None:
        config = CoreConfig(policy=policy, recovery_timeout_ns=RECOVERY_NS)
        self.world = FakeClusterDriver(config)
        self.workers: list[FakeWorker] = [
            self.world.add_worker(
                f"n{number}" if nodes else "n0",
                0 if nodes else number,
                role=role,
                capabilities=capabilities,
            )
            for number, (role, capabilities) in enumerate(engines)
        ]
        self.world.settle()
        self.world.deploy("a", len(engines) if nodes else 1)
        self.world.settle()

    def serve(self, scored: bool, count: int = 6) -> None:
        """Several at once come to their end with their tokens."""
        asked = [
            request("a", (5, 6, number), count, prompt_logprobs=1 if scored else None)
            for number in range(1, 5)
        ]
        sequences = [self.world.submit(one) for one in asked]
        self.world.settle()
        assert all(s.finish is FinishReason.LENGTH for s in sequences)
        assert all(len(s.generated) == count for s in sequences)

    def refusal(self) -> AegaeonError:
        """What a request for log-probabilities of its prompt is told."""
        with pytest.raises(AegaeonError) as caught:
            self.world.submit(request("a", (5, 6), 6, prompt_logprobs=1))
        return caught.value


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
@pytest.mark.parametrize("nodes", [True, False])
@pytest.mark.parametrize(
    "engines",
    [
        ((SIMPLE, OLDER), (SIMPLE, NEWER)),
        ((PREFILL, NEWER), (DECODE, OLDER), (DECODE, NEWER)),
        ((PREFILL, OLDER), (PREFILL, NEWER), (DECODE, NEWER)),
        # The decode engine does both stages of what the prefill engine does not know.
        ((PREFILL, OLDER), (DECODE, NEWER)),
    ],
)
def test_what_some_engines_know_is_answered(
    engines: tuple[tuple[EngineRole, Capabilities], ...], nodes: bool, policy: SchedulingPolicy
) -> None:
    mixture = Mixture(*engines, policy=policy, nodes=nodes)
    mixture.serve(scored=True)  # the driver checks that nobody is sent what it does not know
    mixture.serve(scored=False)
    mixture.serve(scored=True)


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
@pytest.mark.parametrize(
    ("engines", "named"),
    [
        (((SIMPLE, OLDER),), "n0/0"),
        (((PREFILL, OLDER), (DECODE, OLDER)), "n0/0, n0/1"),
        # Nobody would go on after the first token.
        (((PREFILL, NEWER), (DECODE, OLDER)), "n0/1"),
    ],
)
def test_what_no_engine_knows_is_refused_by_name(
    engines: tuple[tuple[EngineRole, Capabilities], ...], named: str, policy: SchedulingPolicy
) -> None:
    mixture = Mixture(*engines, policy=policy)
    error = mixture.refusal()
    assert error.reason is ErrorReason.FEATURE_MISSING
    assert error.metadata == {"feature": "PROMPT_LOGPROBS", "workers": named}
    mixture.serve(scored=False)


def test_a_sequence_whose_engine_is_lost_waits_for_one_that_knows_it() -> None:
    mixture = Mixture((SIMPLE, OLDER), (SIMPLE, NEWER))
    world = mixture.world
    sequence = world.submit(request("a", (5, 6), 6, prompt_logprobs=1))
    assert sequence.engine_id == "n0/1"
    world.lose(mixture.workers[1])
    world.settle()
    assert not sequence.ended
    world.add_worker("n0", 1)
    world.settle()
    assert sequence.finish is FinishReason.LENGTH


def test_a_sequence_that_only_older_engines_are_left_for_ends_with_the_reason() -> None:
    mixture = Mixture((SIMPLE, OLDER), (SIMPLE, NEWER))
    sequence = mixture.world.submit(request("a", (5, 6), 6, prompt_logprobs=1))
    mixture.world.lose(mixture.workers[1])
    mixture.world.pass_time(RECOVERY_NS + 1)
    assert sequence.error is not None
    assert sequence.error.reason is ErrorReason.FEATURE_MISSING
    assert sequence.error.metadata["workers"] == "n0/0"
    mixture.serve(scored=False)


def test_a_drained_engine_that_alone_knows_it_keeps_what_has_begun() -> None:
    mixture = Mixture((SIMPLE, OLDER), (SIMPLE, NEWER))
    world = mixture.world
    sequence = world.submit(request("a", (5, 6), 6, prompt_logprobs=1))
    world.apply(events.DrainRequested((mixture.workers[1].epoch,), False))
    assert sequence.engine_id == "n0/1"
    # Others may try again once it is back.
    assert mixture.refusal().reason is ErrorReason.MODEL_NOT_READY
    world.settle()
    assert sequence.finish is FinishReason.LENGTH


@pytest.mark.parametrize("newer", [True, False])
def test_kv_is_fetched_only_where_both_ends_know_how(newer: bool) -> None:
    capabilities = OF_WORKER if newer else OF_WORKER - {Capability.KV_FETCH}
    mixture = Mixture((PREFILL, capabilities), (DECODE, OF_WORKER), nodes=True)
    mixture.serve(scored=False)
    statistics = mixture.world.cluster.state.statistics
    assert statistics.handed_off == 4
    assert (statistics.fetched, statistics.recomputed) == ((4, 0) if newer else (0, 4))
    assert not mixture.world.slabs
