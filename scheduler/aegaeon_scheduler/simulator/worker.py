"""A worker in virtual time: the core's commands in, its events out, durations from profiles."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.prefix_chain import PrefixChain
from aegaeon_scheduler.core.values import FinishReason, KvPlace, TurnEnd, TurnStage, WorkerIdentity
from aegaeon_scheduler.simulator.catalog import ModelShape
from aegaeon_scheduler.simulator.memory import DevicePool, SimulatedSequence

#: Prompt tokens of a step, alone and beside decoding sequences; the real worker's defaults.
PREFILL_TOKENS = 512
MIXED_PREFILL_TOKENS = 128
_BLOCK_TOKENS = 16


class Phase(enum.Enum):
    """What a worker does."""

    IDLE = 0
    SWITCHING = 1
    STEPPING = 2


@dataclass(slots=True, eq=False)
class SimulatedTurn:
    """A turn at the worker."""

    command: commands.QueueTurn
    quota_ns: int
    members: dict[int, None]
    steps: int = 0
    first_step_ns: int = -1


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """One device; see `worker.proto` for what turns mean."""

    epoch: int
    identity: WorkerIdentity
    shapes: dict[str, ModelShape]
    pool: DevicePool
    sequences: dict[int, SimulatedSequence] = field(default_factory=dict)
    turns: list[SimulatedTurn] = field(default_factory=list)
    phase: Phase = Phase.IDLE
    #: When the present phase ends.
    due_ns: int = 0
    busy_ns: int = 0
    switching_ns: int = 0
    switches: int = 0
    _phase_ns: int = 0
    _switched: bool = False
    #: Moved by the latest switch.
    _weight_bytes: int = 0
    _kv_bytes: int = 0
    #: Decoding sequences of the step that runs.
    _decoding: int = 0
    _chunks: list[tuple[SimulatedSequence, int]] = field(default_factory=list)
    _prefilled: int = 0
    #: Events outside turns and phases, with their times.
    notices: list[tuple[int, events.Event]] = field(default_factory=list)

    def take(self, command: commands.Command, now_ns: int) -> None:
        """Carry out a command; its effect on a running step begins with the next one."""
        match command:
            case commands.AddSequence():
                self._add(command)
            case commands.CancelSequences(handles=handles):
                self._cancel([handle for handle in handles if handle in self.sequences], now_ns)
            case commands.ReleaseSequences():
                pass  # host memory is not limited here
            case commands.QueueTurn(handles=handles, quota_ns=quota_ns):
                assert len(self.turns) < 2, "more than one turn queued behind the running one"
                self.turns.append(SimulatedTurn(command, quota_ns, dict.fromkeys(handles)))
            case commands.JoinTurn(turn_id=turn_id, handles=handles):
                for turn in self._turns(turn_id):
                    turn.members.update(dict.fromkeys(handles))
            case commands.LeaveTurn(turn_id=turn_id, handles=handles):
                for turn in self._turns(turn_id):
                    for handle in handles:
                        turn.members.pop(handle, None)
            case commands.LimitTurn(turn_id=turn_id, quota_ns=quota_ns):
                for turn in self._turns(turn_id):
                    turn.quota_ns = quota_ns
            case _:
                raise TypeError(f"a simulated worker cannot carry out {type(command).__name__}")

    def finish_phase(self, now_ns: int) -> events.Event:
        """End the switch or the step that is due, and tell."""
        turn = self.turns[0]
        if self.phase is Phase.SWITCHING:
            self.switching_ns += self._phase_ns
            self.switches += self._switched
            self.phase = Phase.IDLE
            turn.first_step_ns = now_ns
            return events.TurnStarted(
                self.epoch,
                turn.command.turn_id,
                self._switched,
                self._phase_ns,
                self._weight_bytes,
                self._copy_ns(self._kv_bytes),
                self._kv_bytes,
            )
        self.busy_ns += self._phase_ns
        self.phase = Phase.IDLE
        turn.steps += 1
        return self._record(turn, now_ns)

    def go_on(self, now_ns: int) -> events.Event | None:
        """Begin whatever comes next; returns the end of a turn, after which to ask again."""
        if self.phase is not Phase.IDLE or not self.turns:
            return None
        turn = self.turns[0]
        if turn.first_step_ns < 0:
            self._begin_turn(turn, now_ns)
            return None
        elapsed = now_ns - turn.first_step_ns
        over = turn.quota_ns and turn.steps and elapsed >= turn.quota_ns
        if over or not self._begin_step(turn, now_ns):
            self.turns.pop(0)
            reason = TurnEnd.QUOTA if over else TurnEnd.COMPLETED
            return events.TurnEnded(self.epoch, turn.command.turn_id, reason, elapsed, turn.steps)
        return None

    def _turns(self, turn_id: int) -> list[SimulatedTurn]:
        return [turn for turn in self.turns if turn.command.turn_id == turn_id]

    def _members(self, turn: SimulatedTurn) -> list[SimulatedSequence]:
        sequences = self.sequences
        found = [sequences[handle] for handle in turn.members if handle in sequences]
        return found[: self.identity.max_batch_sequences]

    def _begin_turn(self, turn: SimulatedTurn, now_ns: int) -> None:
        shape = self.shapes[turn.command.model]
        weight_bytes = self.pool.switch(shape, now_ns)
        _, kv_bytes = self.pool.fit(shape, self._members(turn))
        self._switched = weight_bytes > 0
        self._weight_bytes, self._kv_bytes = weight_bytes, kv_bytes
        self._begin(Phase.SWITCHING, self._copy_ns(weight_bytes + kv_bytes), now_ns)

    def _begin_step(self, turn: SimulatedTurn, now_ns: int) -> bool:
        members = self._members(turn)
        if not members:
            return False
        shape = self.shapes[turn.command.model]
        for sequence in members:
            if self.pool.reuse(sequence):
                reused = events.SequenceReused(self.epoch, sequence.handle, sequence.found)
                self.notices.append((now_ns, reused))
        running, kv_bytes = self.pool.fit(shape, members)
        assert running, f"one sequence of {shape.name} is larger than the device"
        self._plan(running)
        for sequence in running:
            if sequence.imported:
                imported = events.SequenceImported(
                    self.epoch, sequence.handle, sequence.imported, kv_bytes
                )
                self.notices.append((now_ns, imported))
                sequence.imported = 0
        decoding = [s for s, count in self._chunks if count == 1 and s.computed]
        context = sum([sequence.computed for sequence in decoding])
        self._decoding = len(decoding)
        step_ns = shape.profile.step_ns(len(decoding), context, self._prefilled)
        self._begin(Phase.STEPPING, step_ns + self._copy_ns(kv_bytes), now_ns)
        names = [*(other.command.model for other in self.turns[1:]), turn.command.prefetch_model]
        self.pool.prefetch([self.shapes[name] for name in names if name], shape.name, now_ns)
        return True

    def _plan(self, running: list[SimulatedSequence]) -> None:
        """All decoding sequences, then prefills in order until the token budget is used up.

        A sequence whose next block an earlier one computes waits, and finds it in the next step.
        """
        chunks = [(sequence, 1) for sequence in running if sequence.pending == 1]
        budget = whole = MIXED_PREFILL_TOKENS if chunks else PREFILL_TOKENS
        seen: set[int] = set()
        for sequence in running:
            if sequence.pending > 1 and budget:
                name = sequence.next_block
                if name in seen:
                    continue
                if name is not None:
                    seen.add(name)
                count = min(budget, sequence.pending)
                budget -= count
                chunks.append((sequence, count))
        self._chunks, self._prefilled = chunks, whole - budget

    def _record(self, turn: SimulatedTurn, now_ns: int) -> events.StepDone:
        handles: list[int] = []
        ends: list[int] = []
        context = 0
        for sequence, count in self._chunks:
            sequence.computed += count
            sequence.pending -= count
            if count > 1:
                self.pool.keep(sequence)
            context += sequence.computed
            if sequence.pending or sequence.handle not in self.sequences:
                continue
            sequence.pending = 1
            sequence.remaining -= 1
            sequence.made += 1
            handles.append(sequence.handle)
            if sequence.remaining:
                ends.append(FinishReason.UNSPECIFIED)
                continue
            ends.append(FinishReason.LENGTH)
            del self.sequences[sequence.handle]
            self.pool.forget(sequence)
            if sequence.chain is not None:
                sequence.chain.extend(bytes(sequence.made - 1))
                self.pool.keep(sequence)
        if turn.command.stage is TurnStage.PREFILL:
            for handle, end in zip(handles, ends, strict=True):
                if end is FinishReason.UNSPECIFIED:
                    self._hand_off(turn, handle, now_ns)
        zeros = [0] * len(handles)
        return events.StepDone(
            self.epoch,
            turn.command.turn_id,
            handles,
            zeros,
            ends,
            self._phase_ns,
            self._prefilled,
            self._decoding,
            context,
        )

    def _add(self, command: commands.AddSequence) -> None:
        assert command.handle not in self.sequences, "a handle was used twice"
        known = len(command.prompt) + len(command.generated)
        there = 0 if command.kv is None else command.kv.num_tokens
        chain = PrefixChain(command.model, command.prefix.salt, _BLOCK_TOKENS, command.prompt)
        self.sequences[command.handle] = SimulatedSequence(
            command.handle,
            self.shapes[command.model],
            known - there,
            there,
            command.stop.max_new_tokens - len(command.generated),
            imported=there,
            chain=chain if command.prefix.enabled and not command.generated else None,
        )

    def _cancel(self, handles: list[int], now_ns: int) -> None:
        for handle in handles:
            self.pool.forget(self.sequences.pop(handle))
        count = len(handles)
        ended = events.StepDone(
            self.epoch, 0, handles, [0] * count, [FinishReason.CANCELLED] * count, 0, 0, 0, 0
        )
        self.notices.append((now_ns, ended))

    def _hand_off(self, turn: SimulatedTurn, handle: int, now_ns: int) -> None:
        """Write a sequence's KV to host memory, beside whatever runs next."""
        sequence = self.sequences.pop(handle)
        turn.members.pop(handle, None)
        self.pool.forget(sequence)
        copy_ns = self._copy_ns(sequence.computed * sequence.shape.kv_token_bytes)
        place = KvPlace(sequence.computed)
        handed = events.SequenceHandedOff(self.epoch, handle, place, copy_ns)
        self.notices.append((now_ns + copy_ns, handed))

    def _begin(self, phase: Phase, duration_ns: int, now_ns: int) -> None:
        self.phase, self._phase_ns, self.due_ns = phase, duration_ns, now_ns + duration_ns

    def _copy_ns(self, size: int) -> int:
        return round(size / self.pool.device.link_bytes_per_s * 1e9)
