"""Whatever happens in whatever order, the ledgers hold and every sequence ends once and right."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from aegaeon.capability import NO_CAPABILITIES, OF_WORKER
from aegaeon.errors import AegaeonError, EngineError
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.values import EngineRole, FinishReason, WorkerMemory
from tests.scheduler.fake_cluster import FakeClusterDriver, replay, request
from tests.scheduler.fake_worker import MS, PACKED, token_at

MODELS = ("a", "b", "c")
NODES = ("n0", "n1")
#: More than a test can spend, so that no request fails while a worker might still come.
RECOVERY_NS = 10**15
#: Disasters are rare, or nothing would ever get far enough to be worth losing.
seldom = st.integers(0, 3).map(lambda number: number == 3)


class AnyOrder(RuleBasedStateMachine):
    """Two nodes with up to two engines each, three models, requests of a few tokens."""

    policy = SchedulingPolicy.DEADLINE
    #: Of each node's engines, by index; of the second one's if they are others.
    roles: tuple[EngineRole, ...] = (EngineRole.SIMPLE, EngineRole.SIMPLE)
    others: tuple[EngineRole, ...] = ()
    batch = 2
    #: Room for two models on a node only, so that deployments evict.
    cache = 250

    def __init__(self) -> None:
        super().__init__()
        config = CoreConfig(
            policy=self.policy,
            reader_backlog_tokens=3,
            recovery_timeout_ns=RECOVERY_NS,
            affinity_slack=2,
            stealing_min_batch_gap=2,
            prefix_index_blocks=16,
        )
        self.world = FakeClusterDriver(config)
        self.ended: dict[int, int] = {}

    @initialize()
    def begin(self) -> None:
        for index, role in enumerate(self.roles):
            self.world.add_worker("n0", index, batch=self.batch, cache=self.cache, role=role)
        self.world.settle()
        for model in MODELS[: self.cache // PACKED]:
            self.world.deploy(model)
        self.world.settle()

    @rule(node=st.sampled_from(NODES), index=st.integers(0, 3), replace=seldom, older=seldom)
    def register(self, node: str, index: int, replace: bool, older: bool) -> None:
        roles = self.roles_of(node)
        index %= len(roles)
        known = self.world.cluster.state.nodes.get(node)
        if known is not None and index in known.engines and not replace:
            return
        self.world.add_worker(
            node,
            index,
            batch=self.batch,
            cache=self.cache,
            role=roles[index],
            capabilities=NO_CAPABILITIES if older else OF_WORKER,
        )

    def roles_of(self, node: str) -> tuple[EngineRole, ...]:
        return self.others or self.roles if node == "n1" else self.roles

    @rule(data=st.data(), room=st.booleans())
    @precondition(lambda self: self.world.workers)
    def fill_slabs(self, data: st.DataObject, room: bool) -> None:
        data.draw(st.sampled_from(list(self.world.workers.values()))).room = room

    @rule(data=st.data(), wire=st.booleans())
    @precondition(lambda self: self.world.workers)
    def cut_wire(self, data: st.DataObject, wire: bool) -> None:
        data.draw(st.sampled_from(list(self.world.workers.values()))).wire = wire

    @rule(
        model=st.sampled_from(MODELS),
        counts=st.lists(st.integers(1, 12), min_size=1, max_size=4),
        prompt=st.integers(1, 900),
        length=st.integers(1, 4),
        scored=st.none() | st.integers(0, 2),
    )
    def submit(
        self, model: str, counts: list[int], prompt: int, length: int, scored: int | None
    ) -> None:
        for count in counts:
            self._submit(model, count, tuple(range(prompt, prompt + length)), scored)

    @rule(
        model=st.sampled_from(MODELS),
        count=st.integers(1, 20),
        first=st.integers(1, 2),
        length=st.sampled_from([17, 40, 60]),
    )
    def submit_alike(self, model: str, count: int, first: int, length: int) -> None:
        """Prompts of which some have blocks of KV in common."""
        self._submit(model, count, tuple(range(first, first + length)))

    @rule(data=st.data(), blocks=st.integers(0, 12))
    @precondition(lambda self: self.world.workers)
    def report_memory(self, data: st.DataObject, blocks: int) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.world.workers)))
        memory = WorkerMemory(0, 0, 0, 0, 0, 0, prefix_device_bytes=blocks)
        self.world.apply(events.MemoryReported(epoch, memory))

    def _submit(
        self, model: str, count: int, prompt: tuple[int, ...], scored: int | None = None
    ) -> None:
        refusal = None
        try:
            self.world.submit(request(model, prompt, count, prompt_logprobs=scored))
        except AegaeonError as error:
            refusal = error.reason.name
        assert refusal in (
            None,
            "MODEL_NOT_FOUND",
            "MODEL_NOT_READY",
            "MODEL_DRAINING",
            "FEATURE_MISSING",
        )
        assert refusal != "FEATURE_MISSING" or scored is not None

    @rule(data=st.data())
    @precondition(lambda self: self.world.sequences)
    def cancel(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.world.sequences))
        self.world.apply(events.CancelRequested(sequence.sequence_id))
        assert sequence.ended

    @rule(data=st.data(), really=seldom)
    @precondition(lambda self: self.world.workers)
    def empty_an_engine(self, data: st.DataObject, really: bool) -> None:
        if not really:
            return
        epoch = data.draw(st.sampled_from(sorted(self.world.workers)))
        for sequence in list(self.world.cluster.state.engines[epoch].sequences.values()):
            self.world.apply(events.CancelRequested(sequence.sequence_id))

    @rule(reader=st.integers(0, 1))
    def read(self, reader: int) -> None:
        self.world.read(reader)

    @rule(data=st.data(), count=st.integers(1, 4))
    @precondition(lambda self: any(w.inbox for w in self.world.workers.values()))
    def take_commands(self, data: st.DataObject, count: int) -> None:
        busy = [w for w in self.world.workers.values() if w.inbox]
        worker = data.draw(st.sampled_from(busy))
        for _ in range(min(count, len(worker.inbox))):
            worker.take()

    @rule(data=st.data(), count=st.integers(1, 6))
    @precondition(lambda self: any(w.turns for w in self.world.workers.values()))
    def step(self, data: st.DataObject, count: int) -> None:
        busy = [w for w in self.world.workers.values() if w.turns]
        worker = data.draw(st.sampled_from(busy))
        for _ in range(count):
            self.world.now_ns += worker.step()

    @rule(data=st.data(), count=st.integers(1, 6))
    @precondition(lambda self: any(w.outbox for w in self.world.workers.values()))
    def deliver(self, data: st.DataObject, count: int) -> None:
        busy = [w for w in self.world.workers.values() if w.outbox]
        self.world.deliver(data.draw(st.sampled_from(busy)), count)

    @rule(data=st.data())
    @precondition(lambda self: any(w.sequences for w in self.world.workers.values()))
    def fail_sequence(self, data: st.DataObject) -> None:
        busy = [w for w in self.world.workers.values() if w.sequences]
        worker = data.draw(st.sampled_from(busy))
        worker.fail(data.draw(st.sampled_from(sorted(worker.sequences))), EngineError("broken"))

    @rule(rounds=st.integers(1, 8))
    def bustle(self, rounds: int) -> None:
        """Everybody works for a while, as most of the time."""
        self._work(rounds)

    def _work(self, rounds: int) -> None:
        for _ in range(rounds):
            while self.world.inspections:
                self.world.answer_inspection()
            for worker in list(self.world.workers.values()):
                while worker.inbox:
                    worker.take()
                self.world.now_ns += worker.step()
                self.world.deliver(worker, len(worker.outbox))

    @rule(data=st.data(), really=seldom)
    @precondition(lambda self: self.world.workers)
    def lose(self, data: st.DataObject, really: bool) -> None:
        if not really:
            return
        worker = data.draw(st.sampled_from(list(self.world.workers.values())))
        late = list(worker.outbox)
        self.world.lose(worker)
        for event in late:  # of an ended registration: must change nothing
            self.world.apply(event)

    @rule(data=st.data(), several=st.booleans(), resume=st.booleans())
    @precondition(lambda self: self.world.workers)
    def drain(self, data: st.DataObject, several: bool, resume: bool) -> None:
        epochs = sorted(self.world.workers)
        chosen = [data.draw(st.sampled_from(epochs)) for _ in range(1 + several)]
        self.world.apply(events.DrainRequested(tuple(dict.fromkeys(chosen)), resume))

    @rule(model=st.sampled_from(MODELS), count=st.integers(1, 2))
    def deploy(self, model: str, count: int) -> None:
        self.world.deploy(model, count)

    @rule(model=st.sampled_from(MODELS), really=seldom)
    def undeploy(self, model: str, really: bool) -> None:
        if really:
            self.world.undeploy(model)

    @rule()
    @precondition(lambda self: self.world.inspections)
    def inspect(self) -> None:
        self.world.answer_inspection()

    @rule()
    def pass_time(self) -> None:
        self.world.pass_time(100 * MS)

    @invariant()
    def ledgers_hold(self) -> None:
        assert self.world.cluster.audit() == []

    @invariant()
    def ends_are_final_and_tokens_right(self) -> None:
        for sequence in self.world.sequences:
            prompt = tuple(sequence.prompt)
            made = list(sequence.generated)
            assert made == [token_at(prompt, index) for index in range(len(made))]
            if sequence.ended:
                assert self.ended.setdefault(sequence.sequence_id, len(made)) == len(made)
            if sequence.finish is FinishReason.LENGTH:
                assert len(made) == sequence.stop.max_new_tokens

    def teardown(self) -> None:
        """With a worker on every node everything comes to its end, and nothing is left."""
        world = self.world
        for node in NODES:
            for index, role in enumerate(self.roles_of(node)):
                world.add_worker(node, index, batch=self.batch, cache=1_000, role=role)
        world.settle()
        for model in {s.model for s in world.sequences if not s.ended}:
            world.deploy(model)
        world.settle()
        assert all(sequence.ended for sequence in world.sequences)
        assert all(count == 1 for count in world.ends.values())
        state = world.cluster.state
        assert not state.sequences
        assert not state.orphans
        assert state.reserved_tokens == 0
        assert all(model.requests == 0 == model.tokens for model in state.models.values())
        assert not any(engine.queues or engine.turns for engine in state.engines.values())
        assert not any(engine.ending or engine.held for engine in state.engines.values())
        assert not world.slabs
        assert not any(node.reserved or node.evicting for node in state.nodes.values())
        assert not any(model.operations for model in state.models.values())
        assert len(world.results) == world._operation
        assert replay(world) == world.outputs


class AnyOrderInTurn(AnyOrder):
    """The same with models in turn."""

    policy = SchedulingPolicy.ROUND_ROBIN


class AnyOrderPublished(AnyOrder):
    """The same with the published policy."""

    policy = SchedulingPolicy.PUBLISHED


class AnyOrderDedicated(AnyOrder):
    """The same with a prefill and two decode engines per node."""

    roles = (EngineRole.PREFILL, EngineRole.DECODE, EngineRole.DECODE)

    @rule(data=st.data(), rounds=st.integers(2, 12))
    def pile_up_and_idle(self, data: st.DataObject, rounds: int) -> None:
        """Many models wait for decoding, and a decode engine has nothing to do any more."""
        for number in range(2):
            for model in MODELS:
                self._submit(model, 12, (number + 1,))
        self._work(rounds)
        engines = self.world.cluster.state.engines.values()
        decoding = sorted(e.epoch for e in engines if e.role is EngineRole.DECODE)
        if not decoding:
            return
        engine = self.world.cluster.state.engines[data.draw(st.sampled_from(decoding))]
        for sequence in list(engine.sequences.values()):
            self.world.apply(events.CancelRequested(sequence.sequence_id))


class AnyOrderAcrossNodes(AnyOrderDedicated):
    """A node of prefill engines and one of decode engines, and models on both."""

    roles = (EngineRole.PREFILL, EngineRole.PREFILL)
    others = (EngineRole.DECODE, EngineRole.DECODE)

    @initialize()
    def begin(self) -> None:
        for node in NODES:
            for index, role in enumerate(self.roles_of(node)):
                self.world.add_worker(node, index, batch=self.batch, cache=self.cache, role=role)
        self.world.settle()
        for model in MODELS[: self.cache // PACKED]:
            self.world.deploy(model, 2)
        self.world.settle()


class AnyOrderPublishedAcrossNodes(AnyOrderAcrossNodes):
    """The same with the published policy."""

    policy = SchedulingPolicy.PUBLISHED


class AnyOrderPublishedDedicated(AnyOrderDedicated):
    """The same with the published policy, and many small batches to steal."""

    policy = SchedulingPolicy.PUBLISHED
    batch = 1
    cache = 350


SETTINGS = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
AnyOrder.TestCase.settings = AnyOrderInTurn.TestCase.settings = SETTINGS
AnyOrderDedicated.TestCase.settings = AnyOrderPublished.TestCase.settings = SETTINGS
AnyOrderPublishedDedicated.TestCase.settings = SETTINGS
AnyOrderAcrossNodes.TestCase.settings = SETTINGS
AnyOrderPublishedAcrossNodes.TestCase.settings = SETTINGS
TestAnyOrder = AnyOrder.TestCase
TestAnyOrderAcrossNodes = AnyOrderAcrossNodes.TestCase
TestAnyOrderPublishedAcrossNodes = AnyOrderPublishedAcrossNodes.TestCase
TestAnyOrderPublished = AnyOrderPublished.TestCase
TestAnyOrderPublishedDedicated = AnyOrderPublishedDedicated.TestCase
TestAnyOrderDedicated = AnyOrderDedicated.TestCase
TestAnyOrderInTurn = AnyOrderInTurn.TestCase
