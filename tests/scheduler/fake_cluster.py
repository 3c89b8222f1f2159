"""The policy core with fake workers, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon.capability import NO_CAPABILITIES, OF_WORKER, Capabilities, Capability
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.backlog import Backlog
from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.log_probabilities import PromptPiece
from aegaeon_scheduler.core.notices import Notice
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import (
    DeviceFacts,
    EngineRole,
    GenerationRequest,
    KvSharing,
    ModelSpec,
    NodeMemory,
    RequestedStop,
    WorkerIdentity,
)
from tests.scheduler.fake_worker import FakeWorker, facts, token_at

#: What whoever computes log-probabilities of prompts must know.
SCORING = frozenset({Capability.PROMPT_LOGPROBS})


def request(
    model: str = "a",
    prompt: tuple[int, ...] = (1,),
    count: int = 3,
    timeout_ns: int = 0,
    priority: int = 0,
    ttft_slo_ns: int = 0,
    tpot_slo_ns: int = 0,
    prompt_logprobs: int | None = None,
) -> GenerationRequest:
    stop = RequestedStop(count)
    needs = NO_CAPABILITIES if prompt_logprobs is None else SCORING
    return GenerationRequest(
        model,
        "",
        prompt,
        (),
        stop,
        timeout_ns,
        priority,
        ttft_slo_ns,
        tpot_slo_ns,
        prompt_logprobs=prompt_logprobs,
        needs=needs,
    )


@dataclass(frozen=True)
class Read:
    """A reader takes all that it has; not an event of the core's, but it changes what follows."""

    reader: int


class FakeClusterDriver:
    """Drives a core: carries its commands to fake workers, and their events back on demand."""

    def __init__(self, config: CoreConfig | None = None) -> None:
        self.config = config or CoreConfig()
        self.cluster = Cluster(self.config)
        self.now_ns = 0
        self.workers: dict[int, FakeWorker] = {}
        self.sequences: list[Sequence] = []
        #: Readers take turns in submitting, so that each has several sequences.
        self.backlogs = [Backlog(), Backlog()]
        #: What readers have taken of every sequence: its tokens, and its ends.
        self.delivered: dict[int, list[int]] = {}
        self.ends: dict[int, int] = {}
        #: How many of its prompt's tokens the reader of a sequence knows of.
        self.told: dict[int, int] = {}
        self.results: dict[int, commands.DeployFinished | commands.UndeployFinished] = {}
        self.inspections: list[commands.InspectModel] = []
        #: Everything that went in and came out, to compare runs.
        self.inputs: list[tuple[int, events.Event | GenerationRequest | Read]] = []
        self.outputs: list[str] = []
        self.sent: list[commands.WorkerCommand] = []
        self.notices: list[Notice] = []
        #: Who left KV in the slabs, by epoch and handle; and epochs that have been lost.
        self.slabs: set[tuple[int, int]] = set()
        self.lost: set[int] = set()
        self._epoch = 0
        self._operation = 0

    def apply(self, event: events.Event) -> None:
        self.inputs.append((self.now_ns, event))
        self._carry_out(self.cluster.handle(event, self.now_ns))
        assert self.cluster.audit() == [], event

    def submit(self, wanted: GenerationRequest) -> Sequence:
        backlog = self.backlogs[len(self.sequences) % len(self.backlogs)]
        sequence, following = self.cluster.submit(wanted, backlog, self.now_ns)
        self.inputs.append((self.now_ns, wanted))
        self.sequences.append(sequence)
        self.delivered[sequence.sequence_id] = []
        self.ends[sequence.sequence_id] = 0
        self.told[sequence.sequence_id] = 1
        self._carry_out(following)
        return sequence

    def add_worker(
        self,
        node_id: str = "n0",
        index: int = 0,
        batch: int = 4,
        cache: int = 1_000,
        role: EngineRole = EngineRole.SIMPLE,
        capabilities: Capabilities = OF_WORKER,
        sharing: KvSharing | None = None,
    ) -> FakeWorker:
        self._epoch += 1
        identity = WorkerIdentity(
            node_id,
            index,
            "unix:x",
            DeviceFacts("cpu", "fake", 10_000, 1),
            NodeMemory(1, 1, cache),
            batch,
            role=role,
            capabilities=capabilities,
            kv_sharing=sharing or KvSharing(),
        )
        worker = FakeWorker(self._epoch, identity, slabs=self.slabs, lost=self.lost)
        self.apply(events.WorkerRegistered(self._epoch, identity))
        self.workers[self._epoch] = worker
        worker.outbox.append(events.WorkerReady(self._epoch, ()))
        return worker

    def lose(self, worker: FakeWorker) -> None:
        self.apply(events.WorkerLost(worker.epoch, "killed"))

    def deploy(
        self, name: str, count: int = 1, node_ids: tuple[str, ...] = (), ttft_slo_ns: int = 0
    ) -> int:
        self._operation += 1
        spec = ModelSpec(name, f"/{name}", ttft_slo_ns=ttft_slo_ns)
        self.apply(events.DeployRequested(self._operation, spec, count, node_ids))
        return self._operation

    def undeploy(self, name: str) -> int:
        self._operation += 1
        self.apply(events.UndeployRequested(self._operation, name, ()))
        return self._operation

    def deliver(self, worker: FakeWorker, count: int = 1) -> None:
        """Pass on a worker's oldest events."""
        for _ in range(min(count, len(worker.outbox))):
            self.apply(worker.outbox.popleft())

    def answer_inspection(self) -> None:
        asked = self.inspections.pop(0)
        self.apply(events.ModelInspected(asked.operation_id, facts(asked.spec.name), None))

    def read(self, reader: int) -> None:
        """Let a reader take all that it has, checking what comes; then it has caught up."""
        backlog = self.backlogs[reader]
        self.inputs.append((self.now_ns, Read(reader)))
        while (parcel := backlog.take()) is not None:
            for piece in parcel.prompts:
                self._take_piece(piece)
            for owner, token in zip(parcel.owners, parcel.tokens, strict=True):
                got = self.delivered[owner.sequence_id]
                assert token == token_at(tuple(owner.prompt), len(got))
                if owner.prompt_logprobs is not None:
                    assert self.told[owner.sequence_id] == len(owner.prompt)
                assert not self.ends[owner.sequence_id], "a token after the end"
                got.append(token)
            for sequence in parcel.ended:
                assert self.delivered[sequence.sequence_id] == list(sequence.generated)
                self.ends[sequence.sequence_id] += 1
        for sequence in list(backlog.paused.values()):
            assert not sequence.unread
            self.apply(events.ReaderCaughtUp(sequence.sequence_id))

    def _take_piece(self, piece: PromptPiece) -> None:
        """Every token of a prompt comes once, in order, ahead of the first new one."""
        owner, count = piece.owner, len(piece.logprobs)
        assert owner.prompt_logprobs == piece.top_count
        assert piece.start == self.told[owner.sequence_id], "a token of the prompt twice, or never"
        self.told[owner.sequence_id] += count
        assert not self.delivered[owner.sequence_id]
        assert not self.ends[owner.sequence_id]
        own = owner.prompt[piece.start : piece.start + count]
        assert list(piece.logprobs) == [-token for token in own]
        top = [token + i for token in own for i in range(piece.top_count)]
        assert list(piece.top_token_ids) == top
        assert list(piece.top_logprobs) == [-token for token in top]

    def settle(self, read: bool = True) -> None:
        """Let everything happen until nothing more does."""
        for _ in range(100_000):
            busy = bool(self.inspections)
            if busy:
                self.answer_inspection()
            for worker in list(self.workers.values()):
                busy |= bool(worker.inbox or worker.outbox or worker.turns or worker.cancelled)
                busy |= bool(worker.leaving or worker.fetching)
                while worker.inbox:
                    worker.take()
                self.now_ns += worker.step()
                self.deliver(worker, len(worker.outbox))
            if read:
                for reader, backlog in enumerate(self.backlogs):
                    if backlog.announced:
                        self.read(reader)
                        busy = True
            if not busy:
                return
        raise AssertionError("the cluster does not come to rest")

    def pass_time(self, duration_ns: int) -> None:
        self.now_ns += duration_ns
        self.apply(events.Tick())

    def _carry_out(self, following: list[commands.Command]) -> None:
        for command in following:
            self.outputs.append(_describe(command))
            match command:
                case commands.FenceWorker(epoch=epoch):
                    self.workers.pop(epoch, None)
                    self.lost.add(epoch)
                    self.slabs.difference_update(
                        {place for place in self.slabs if place[0] == epoch}
                    )
                case commands.InspectModel():
                    self.inspections.append(command)
                case commands.DeployFinished() | commands.UndeployFinished():
                    self.results[command.operation_id] = command
                case commands.Publish(notice=notice):
                    self.notices.append(notice)
                case commands.Deliver() | commands.DeployProgressed():
                    pass
                case _:
                    worker = self.workers.get(command.epoch)
                    if worker is not None:
                        self._check_known(command, worker)
                        self.sent.append(command)
                        worker.inbox.append(command)

    def _check_known(self, command: commands.WorkerCommand, worker: FakeWorker) -> None:
        """No worker is sent what its release does not understand."""
        if isinstance(command, commands.AddSequence):
            known = worker.identity.capabilities
            assert command.prompt_logprobs is None or known >= SCORING
            fetched = command.kv is not None and command.kv.address
            assert not fetched or Capability.KV_FETCH in known
            offered = command.kv is not None and command.kv.offer
            assert not offered or Capability.KV_OFFERS in known


def replay(driver: FakeClusterDriver) -> list[str]:
    """What a fresh core answers to the same events."""
    again = FakeClusterDriver(driver.config)
    for now_ns, item in driver.inputs:
        again.now_ns = now_ns
        match item:
            case GenerationRequest():
                again.submit(item)
            case Read(reader=reader):
                while again.backlogs[reader].take():
                    pass
            case _:
                again.apply(item)
    return again.outputs


def _describe(command: commands.Command) -> str:
    if isinstance(command, commands.Deliver):
        parcels = [backlog.open for backlog in command.backlogs]
        owners = [s.sequence_id for p in parcels for s in [*p.owners, *p.ended]]
        return f"Deliver({owners})"
    return repr(command)
