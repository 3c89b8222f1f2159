"""A worker in virtual time; nothing happens that a test does not ask for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.log_probabilities import PromptLogProbabilities
from aegaeon_scheduler.core.values import (
    BlockRun,
    FinishReason,
    KvPlace,
    ModelFacts,
    ModelSpec,
    TurnEnd,
    TurnStage,
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


def scores(
    told: Sequence[tuple[commands.AddSequence, int]],
) -> PromptLogProbabilities | None:
    """One token of each prompt, at its position: minus its id, and so many others beside it."""
    if not told:
        return None
    counts = [sequence.prompt_logprobs or 0 for sequence, _ in told]
    own = [sequence.prompt[position] for sequence, position in told]
    top = [token + i for token, count in zip(own, counts, strict=True) for i in range(count)]
    return PromptLogProbabilities(
        [sequence.handle for sequence, _ in told],
        [position for _, position in told],
        [1] * len(told),
        [-float(token) for token in own],
        counts,
        top,
        [-float(token) for token in top],
    )


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
    #: Tokens of prompts that have been told, by handle.
    told: dict[int, int] = field(default_factory=dict)
    turns: deque[commands.QueueTurn] = field(default_factory=deque)
    members: dict[int, dict[int, None]] = field(default_factory=dict)
    quota: dict[int, int] = field(default_factory=dict)
    running: int | None = None
    elapsed_ns: int = 0
    steps: int = 0
    resident: str = ""
    #: KV in the slabs of all nodes: (epoch, handle) of who left it there.
    slabs: set[tuple[int, int]] = field(default_factory=set)
    #: Have had their token in a prefill turn, and are to be handed off.
    leaving: list[int] = field(default_factory=list)
    #: Epochs that have been lost.
    lost: set[int] = field(default_factory=set)
    #: There is room in the slabs.
    room: bool = True
    imported: int = 0
    #: Have KV on its way from another node.
    fetching: dict[int, commands.AddSequence] = field(default_factory=dict)
    #: Tokens that have come, by handle.
    fetched: dict[int, int] = field(default_factory=dict)
    #: Transfers arrive.
    wire: bool = True
    #: Those of `leaving` that are offered on the device.
    offering: set[int] = field(default_factory=set)
    #: Why it copies nothing from other devices, if it does not.
    refusal: str = ""
    #: Of a version that knows of no other nodes: it looks for KV in its own slabs, in vain.
    old: bool = False

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
                self.told[command.handle] = max(1, command.told_prompt_tokens)
                if command.prompt_logprobs is None:
                    self.told[command.handle] = len(command.prompt)
                place = command.kv
                if place is not None and (place.address or place.offer) and not self.old:
                    self.fetching[command.handle] = command
            case commands.CancelSequences(handles=handles):
                self.cancelled += [handle for handle in handles if handle in self.sequences]
                self._release(handles)
            case commands.ReleaseSequences(handles=handles):
                assert all((self.epoch, handle) in self.slabs for handle in handles)
                self._release(handles)
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
        self._hand_off()
        self._fetch()
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
        got, tokens, reasons = [], [], []
        told: list[tuple[commands.AddSequence, int]] = []
        for handle in members:
            sequence = self.sequences[handle]
            assert handle not in self.fetching, "a turn before its KV has come"
            if self.told[handle] < len(sequence.prompt):
                assert sequence.kv is None, "KV of tokens that are to be told"
                told.append((sequence, self.told[handle]))
                self.told[handle] += 1
                continue
            self._import(sequence)
            got.append(handle)
            tokens.append(token_at(tuple(sequence.prompt), self.made[handle]))
            self.made[handle] += 1
            full = self.made[handle] >= sequence.stop.max_new_tokens
            reasons.append(FinishReason.LENGTH if full else FinishReason.UNSPECIFIED)
            if full:
                del self.sequences[handle]
            elif turn.stage is TurnStage.PREFILL:
                del self.members[turn.turn_id][handle]
                self.leaving.append(handle)
                if turn.on_device:
                    self.offering.add(handle)
        self._emit(turn.turn_id, got, tokens, reasons, scores(told))
        return STEP_NS

    def fail(self, handle: int, error: Exception) -> None:
        """Fail one sequence."""
        del self.sequences[handle]
        self.outbox.append(events.SequenceFailed(self.epoch, handle, error))  # type: ignore[arg-type]

    def _import(self, sequence: commands.AddSequence) -> None:
        """Copy in what another worker left, when a turn first runs a sequence."""
        place = sequence.kv
        if place is None or self.made[sequence.handle] != len(sequence.generated):
            return
        source = _source(place)
        assert source[0] != self.epoch, "its own slabs"
        there = source in self.slabs
        # What is about to be cancelled may find nothing any more.
        ending = any(
            isinstance(command, commands.CancelSequences) and sequence.handle in command.handles
            for command in self.inbox
        )
        assert there or ending or source[0] in self.lost, "released before it was copied"
        tokens = place.num_tokens if there and not (self.old and place.address) else 0
        tokens = self.fetched.pop(sequence.handle, tokens)
        self.imported += tokens > 0
        nbytes = 0 if self.refusal == "" else tokens * 1_000
        self.outbox.append(events.SequenceImported(self.epoch, sequence.handle, tokens, nbytes, MS))

    def _fetch(self) -> None:
        """Let everything come that is on its way, if its source still has it."""
        for handle, sequence in self.fetching.items():
            assert sequence.kv is not None
            if handle not in self.sequences:
                continue
            if sequence.kv.offer and not sequence.kv.address and self.refusal:
                self.outbox.append(
                    events.SequenceFetched(self.epoch, handle, 0, refusal=self.refusal)
                )
                continue
            there = self.wire and _source(sequence.kv) in self.slabs
            tokens = sequence.kv.num_tokens if there else 0
            self.fetched[handle] = tokens
            self.outbox.append(
                events.SequenceFetched(
                    self.epoch, handle, tokens, tokens * 1_000, MS, interruptions=not there
                )
            )
        self.fetching.clear()

    def _hand_off(self) -> None:
        """Write the KV of those that have left their prefill turn to the slabs."""
        for handle in self.leaving:
            if handle in self.cancelled or handle not in self.sequences:
                continue
            sequence = self.sequences.pop(handle)
            known = len(sequence.prompt) + self.made[handle] - 1
            place = KvPlace(0)
            if self.room:
                self.slabs.add((self.epoch, handle))
                place = KvPlace(known, 1, (BlockRun(self.epoch, handle, 0, 1),))
                if handle in self.offering:
                    place = KvPlace(known, 1, offer=f"{self.epoch}/{handle}", num_offered=1)
            self.outbox.append(events.SequenceHandedOff(self.epoch, handle, place))
        self.leaving.clear()

    def _release(self, handles: tuple[int, ...]) -> None:
        self.slabs.difference_update((self.epoch, handle) for handle in handles)

    def _start(self, turn: commands.QueueTurn) -> int:
        switched = turn.model != self.resident
        spent = SWITCH_NS if switched else 0
        self.resident, self.running = turn.model, turn.turn_id
        self.elapsed_ns = self.steps = 0
        self.outbox.append(
            events.TurnStarted(self.epoch, turn.turn_id, switched, spent, PACKED * switched, 0, 0)
        )
        return spent

    def _end(self, turn: commands.QueueTurn, reason: TurnEnd) -> None:
        self.turns.popleft()
        self.running = None
        del self.members[turn.turn_id], self.quota[turn.turn_id]
        self.outbox.append(
            events.TurnEnded(self.epoch, turn.turn_id, reason, self.elapsed_ns, self.steps)
        )

    def _emit(
        self,
        turn_id: int,
        handles: list[int],
        tokens: list[int],
        ends: list[int],
        told: PromptLogProbabilities | None = None,
    ) -> None:
        batch = len(handles)
        step = (self.epoch, turn_id, handles, tokens, ends, STEP_NS, 0, batch, batch)
        self.outbox.append(events.StepDone(*step, prompt_log_probabilities=told))


def _source(place: KvPlace) -> tuple[int, int]:
    if place.offer:
        epoch, _, handle = place.offer.partition("/")
        return int(epoch), int(handle)
    return place.runs[0].slab, place.runs[0].slab_generation
