"""The published policy: grouped prefill, decode rounds with quotas.

A dedicated prefill engine runs groups only, and a dedicated decode engine runs rounds only. An
engine that does both stages gives groups the precedence: members leave with their first token, and
are decoded in the rounds of the same engine. Once a batch has waited too long, turns of the round
and groups alternate.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from aegaeon_scheduler.core.batch import Batch
from aegaeon_scheduler.core.decode_rounds import DecodeRounds
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.outbox import Outbox
from aegaeon_scheduler.core.prefill_groups import PrefillGroups
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.turn_writer import DEPTH, TurnWriter
from aegaeon_scheduler.core.values import EngineRole


@dataclass(slots=True, eq=False)
class _Work:
    """What one engine has to do."""

    rounds: DecodeRounds = field(default_factory=DecodeRounds)
    groups: PrefillGroups = field(default_factory=PrefillGroups)
    #: Handles up to this one have been sorted in.
    last_handle: int = 0
    #: The latest turn of the round went ahead of a group.
    went_ahead: bool = False

    def sync(self, engine: Engine) -> None:
        """Follow the engine's ledger."""
        for sequence in self.groups.sync(engine):
            if sequence.handle not in engine.queues[sequence.model].handing:
                self.rounds.add(engine, sequence)
        new: list[Sequence] = []
        for handle in reversed(engine.sequences):  # in order of their handles
            if handle <= self.last_handle:
                break
            new.append(engine.sequences[handle])
        known = sum(len(b.members) for b in [*self.groups.groups, *self.rounds.batches])
        handing = sum(len(queue.handing) for queue in engine.queues.values())
        self.rounds.sync(engine, complete=known + len(new) + handing == len(engine.sequences))
        for sequence in reversed(new):
            self.last_handle = sequence.handle
            if _prefills(engine, sequence):
                self.groups.add(sequence)
            else:
                self.rounds.add(engine, sequence)

    def alone(self) -> bool:
        """Nothing competes for the engine."""
        return len(self.rounds.batches) + len(self.groups.groups) < 2


@dataclass(slots=True)
class PublishedPlanner:
    """See `Planner`; no batch waits longer than ``max_wait_ns`` for groups alone."""

    max_wait_ns: int
    _writer: TurnWriter = field(default_factory=TurnWriter)
    #: By epoch.
    _work: dict[int, _Work] = field(default_factory=dict)

    def choose(self, engines: Items[Engine], sequence: Sequence) -> Engine:
        """Prefill: an open group, else the least load. Decode: a batch, else the fewest batches."""
        if not sequence.prefilled_on:
            for engine in engines:
                group = self._synced(engine).groups.open_group(sequence.model)
                if group is not None:
                    return engine
        for engine in engines:
            if self._synced(engine).rounds.mergeable(engine, sequence) is not None:
                return engine
        return min(engines, key=self._load)

    def replan(self, engine: Engine, now_ns: int, out: Outbox) -> None:
        """See `Planner`."""
        if not engine.ready:
            return
        work = self._synced(engine)
        for batch in [*work.groups.groups, *work.rounds.batches]:
            if batch.turn is not None and engine.queues.get(batch.model) is not None:
                room = engine.identity.max_batch_sequences - len(batch.turn.members)
                self._writer.join(engine, batch.turn, _draw(engine, batch, room), out)
        while len(engine.turns) < DEPTH and self._queue_next(engine, work, now_ns, out):
            pass
        for batch in work.rounds.batches:
            if batch.turn is not None:
                quota_ns = work.rounds.quota_ns(engine, batch, work.alone())
                self._writer.limit(engine, batch.turn, quota_ns, out)
        for group in work.groups.groups:
            if group.turn is not None:
                self._writer.limit(engine, group.turn, 0, out)

    def batches(self, engine: Engine) -> list[Batch]:
        """See `Planner`; a batch that has only its turn's end to come is none."""
        return [batch for batch in self._synced(engine).rounds.batches if batch.members]

    def forget(self, engine: Engine) -> None:
        """See `Planner`."""
        self._work.pop(engine.epoch, None)

    def _synced(self, engine: Engine) -> _Work:
        work = self._work.get(engine.epoch)
        if work is None:
            work = self._work[engine.epoch] = _Work()
        work.sync(engine)
        return work

    def _load(self, engine: Engine) -> tuple[int, float, int]:
        work = self._synced(engine)
        load_ns = work.groups.load_ns(engine)
        return len(work.rounds.batches), load_ns, engine.identity.worker_index

    def _queue_next(self, engine: Engine, work: _Work, now_ns: int, out: Outbox) -> bool:
        groups = work.groups.next_groups(engine)
        overdue = work.rounds.waits_since(engine, now_ns - self.max_wait_ns)
        work.went_ahead = bool(groups) and overdue and not work.went_ahead
        if groups and not work.went_ahead:
            batch, quota_ns = groups[0], 0
            reason = "group of prompts, first come first served"
            prefetch = groups[1].model if len(groups) > 1 else work.rounds.following(engine)
        else:
            found = work.rounds.next_batch(engine)
            if found is None:
                return False
            batch, quota_ns = found
            reason = f"next in a round of {len(work.rounds.batches)} batches"
            if not quota_ns:
                reason = "only batch"
            prefetch = work.rounds.following(engine)
        members = _draw(engine, batch, engine.identity.max_batch_sequences)
        batch.turn = self._writer.queue(
            engine, batch.model, members, quota_ns, prefetch, reason, out, batch in groups
        )
        batch.begun = True
        return True


def _prefills(engine: Engine, sequence: Sequence) -> bool:
    """Whether a sequence that is new on an engine needs a group there."""
    return sequence.model in engine.hands_off or engine.role is not EngineRole.DECODE


def _draw(engine: Engine, batch: Batch, room: int) -> dict[int, Sequence]:
    queue = engine.queues[batch.model]
    waiting = [handle for handle in batch.members if handle in queue.waiting]
    return queue.take(waiting[: max(room, 0)])
