"""The policy core with workers in virtual time; nothing happens that a test does not ask for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import (
    DeviceFacts,
    FinishReason,
    GenerationRequest,
    ModelFacts,
    ModelSpec,
    NodeMemory,
    RequestedStop,
    TurnEnd,
    WorkerIdentity,
)

MS = 1_000_000
STEP_NS = 10 * MS
SWITCH_NS = 20 * MS
PACKED = 100


def facts(name: str) -> ModelFacts:
    return ModelFacts(
        fingerprint=name,
        packed_bytes=PACKED,
        kv_block_bytes=1,
        kv_block_tokens=16,
        vocab_size=1_000,
        max_model_len=2_000,
        eos_token_ids=(2,),
    )


def token_at(prompt: tuple[int, ...], index: int) -> int:
    """The one right token number ``index`` of a prompt's answer."""
    return (prompt[0] * 17 + index * 5) % 997 + 3


def request(
    model: str = "a", prompt: tuple[int, ...] = (1,), count: int = 3, timeout_ns: int = 0
) -> GenerationRequest:
    return GenerationRequest(model, "", prompt, (), RequestedStop(count), timeout_ns)


@dataclass(slots=True, eq=False)
class FakeWorker:
    """Executes commands and steps one at a time, and counts what it must never see."""

    epoch: int
    identity: WorkerIdentity
    inbox: deque[commands.WorkerCommand] = field(default_factory=deque)
    outbox: deque[events.Event] = field(default_factory=deque)
    models: dict[str, ModelSpec] = field(default_factory=dict)
    sequences: dict[int, commands.AddSequence] = field(default_factory=dict)
    #: To be ended at the next token boundary.
    cancelled: list[int] = field(default_factory=list)
    made: dict[int, int] = field(default_factory=dict)
    turns: deque[commands.QueueTurn] = field(default_factory=deque)
    members: dict[int, dict[int, None]] = field(default_factory=dict)
    quota: dict[int, int] = field(default_factory=dict)
    running: int | None = None
    elapsed_ns: int = 0
    steps: int = 0
    resident: str = ""

    def take(self) -> None:
        """Carry out the oldest command."""
        command = self.inbox.popleft()
        match command:
            case commands.LoadModel(spec=spec):
                self.models[spec.name] = spec
                self.outbox.append(events.ModelLoaded(self.epoch, spec, facts(spec.name)))
            case commands.UnloadModel(model=model):
                assert all(s.model != model for s in self.sequences.values()), "unloaded in use"
                self.models.pop(model, None)
                self.outbox.append(events.ModelUnloaded(self.epoch, model))
            case commands.AddSequence():
                assert command.handle not in self.made, "a handle was used twice"
                assert command.model in self.models, "a sequence without its model"
                self.sequences[command.handle] = command
                self.made[command.handle] = len(command.generated)
            case commands.CancelSequences(handles=handles):
                self.cancelled += [handle for handle in handles if handle in self.sequences]
            case _:
                self._take_turn(command)

    def _take_turn(self, command: commands.WorkerCommand) -> None:
        match command:
            case commands.QueueTurn():
                assert len(self.turns) < 2, "more than one turn queued behind the running one"
                assert len(command.handles) <= self.identity.max_batch_sequences
                self.turns.append(command)
                self.members[command.turn_id] = dict.fromkeys(command.handles)
                self.quota[command.turn_id] = command.quota_ns
            case commands.JoinTurn(turn_id=turn_id, handles=handles):
                if turn_id in self.members:
                    self.members[turn_id].update(dict.fromkeys(handles))
            case commands.LeaveTurn(turn_id=turn_id, handles=handles):
                for handle in handles:
                    self.members.get(turn_id, {}).pop(handle, None)
            case commands.LimitTurn(turn_id=turn_id, quota_ns=quota_ns):
                if turn_id in self.quota:
                    self.quota[turn_id] = quota_ns

    def step(self) -> int:
        """End what was cancelled; start, step or end the first turn; returns its time in ns."""
        ended = [handle for handle in self.cancelled if self.sequences.pop(handle, None)]
        self.cancelled.clear()
        if ended:
            self._emit(0, ended, [0] * len(ended), [FinishReason.CANCELLED] * len(ended))
        if not self.turns:
            return 0
        turn = self.turns[0]
        if self.running is None:
            return self._start(turn)
        members = [h for h in self.members[turn.turn_id] if h in self.sequences]
        quota = self.quota[turn.turn_id]
        if not members:
            self._end(turn, TurnEnd.COMPLETED)
            return 0
        if quota and self.steps and self.elapsed_ns >= quota:
            self._end(turn, TurnEnd.QUOTA)
            return 0
        self.steps += 1
        self.elapsed_ns += STEP_NS
        tokens, reasons = [], []
        for handle in members:
            sequence = self.sequences[handle]
            tokens.append(token_at(tuple(sequence.prompt), self.made[handle]))
            self.made[handle] += 1
            full = self.made[handle] >= sequence.stop.max_new_tokens
            reasons.append(FinishReason.LENGTH if full else FinishReason.UNSPECIFIED)
            if full:
                del self.sequences[handle]
        self._emit(turn.turn_id, members, tokens, reasons)
        return STEP_NS

    def fail(self, handle: int, error: Exception) -> None:
        """Fail one sequence."""
        del self.sequences[handle]
        self.outbox.append(events.SequenceFailed(self.epoch, handle, error))  # type: ignore[arg-type]

    def _start(self, turn: commands.QueueTurn) -> int:
        switched = turn.model != self.resident
        spent = SWITCH_NS if switched else 0
        self.resident, self.running = turn.model, turn.turn_id
        self.elapsed_ns = self.steps = 0
        self.outbox.append(events.TurnStarted(self.epoch, turn.turn_id, switched, spent))
        return spent

    def _end(self, turn: commands.QueueTurn, reason: TurnEnd) -> None:
        self.turns.popleft()
        self.running = None
        del self.members[turn.turn_id], self.quota[turn.turn_id]
        self.outbox.append(
            events.TurnEnded(self.epoch, turn.turn_id, reason, self.elapsed_ns, self.steps)
        )

    def _emit(self, turn_id: int, handles: list[int], tokens: list[int], ends: list[int]) -> None:
        self.outbox.append(events.StepDone(self.epoch, turn_id, handles, tokens, ends, STEP_NS, 0))


class FakeClusterDriver:
    """Drives a core: carries its commands to fake workers, and their events back on demand."""

    def __init__(self, config: CoreConfig | None = None) -> None:
        self.config = config or CoreConfig()
        self.cluster = Cluster(self.config)
        self.now_ns = 0
        self.workers: dict[int, FakeWorker] = {}
        self.sequences: list[Sequence] = []
        self.delivered: dict[int, list[int]] = {}
        self.results: dict[int, commands.DeployFinished | commands.UndeployFinished] = {}
        self.inspections: list[commands.InspectModel] = []
        #: Everything that went in and came out, to compare runs.
        self.inputs: list[tuple[int, events.Event | GenerationRequest]] = []
        self.outputs: list[str] = []
        self._epoch = 0
        self._operation = 0

    def apply(self, event: events.Event) -> None:
        self.inputs.append((self.now_ns, event))
        self._carry_out(self.cluster.handle(event, self.now_ns))

    def submit(self, wanted: GenerationRequest) -> Sequence:
        sequence, following = self.cluster.submit(wanted, self.now_ns)
        self.inputs.append((self.now_ns, wanted))
        self.sequences.append(sequence)
        self.delivered[sequence.sequence_id] = []
        self._carry_out(following)
        return sequence

    def add_worker(
        self, node_id: str = "n0", index: int = 0, batch: int = 4, cache: int = 1_000
    ) -> FakeWorker:
        self._epoch += 1
        identity = WorkerIdentity(
            node_id,
            index,
            "unix:x",
            DeviceFacts("cpu", "fake", 10_000, 1),
            NodeMemory(1, 1, cache),
            batch,
        )
        worker = FakeWorker(self._epoch, identity)
        self.apply(events.WorkerRegistered(self._epoch, identity))
        self.workers[self._epoch] = worker
        worker.outbox.append(events.WorkerReady(self._epoch, ()))
        return worker

    def lose(self, worker: FakeWorker) -> None:
        self.apply(events.WorkerLost(worker.epoch, "killed"))

    def deploy(self, name: str, count: int = 1, node_ids: tuple[str, ...] = ()) -> int:
        self._operation += 1
        spec = ModelSpec(name, f"/{name}")
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

    def read(self, sequence: Sequence) -> None:
        """Take what a sequence has for its reader, checking every token."""
        got = self.delivered[sequence.sequence_id]
        got += sequence.take()[0]
        prompt = tuple(sequence.prompt)
        assert got == [token_at(prompt, index) for index in range(len(got))]
        self.apply(events.ReaderCaughtUp(sequence.sequence_id))

    def settle(self, read: bool = True) -> None:
        """Let everything happen until nothing more does."""
        for _ in range(100_000):
            busy = bool(self.inspections)
            if busy:
                self.answer_inspection()
            for worker in list(self.workers.values()):
                busy |= bool(worker.inbox or worker.outbox or worker.turns or worker.cancelled)
                while worker.inbox:
                    worker.take()
                self.now_ns += worker.step()
                self.deliver(worker, len(worker.outbox))
            if read:
                for sequence in self.sequences:
                    if sequence.stamps:
                        self.read(sequence)
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
                case commands.InspectModel():
                    self.inspections.append(command)
                case commands.DeployFinished() | commands.UndeployFinished():
                    self.results[command.operation_id] = command
                case commands.Deliver() | commands.Publish() | commands.DeployProgressed():
                    pass
                case _:
                    worker = self.workers.get(command.epoch)
                    if worker is not None:
                        worker.inbox.append(command)


def replay(driver: FakeClusterDriver) -> list[str]:
    """What a fresh core answers to the same events."""
    again = FakeClusterDriver(driver.config)
    for now_ns, item in driver.inputs:
        if isinstance(item, GenerationRequest):
            _, following = again.cluster.submit(item, now_ns)
        else:
            if isinstance(item, events.ReaderCaughtUp):
                sequence = again.cluster.state.sequences.get(item.sequence_id)
                if sequence is not None:
                    sequence.take()
            following = again.cluster.handle(item, now_ns)
        again._carry_out(following)
    return again.outputs


def _describe(command: commands.Command) -> str:
    if isinstance(command, commands.Deliver):
        return f"Deliver({[sequence.sequence_id for sequence in command.sequences]})"
    return repr(command)
