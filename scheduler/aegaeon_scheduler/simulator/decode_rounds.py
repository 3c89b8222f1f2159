"""A dedicated decode engine of the published policy: rounds of turns with quotas."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_scheduler.core.commands import JoinTurn, LimitTurn, QueueTurn
from aegaeon_scheduler.core.quota import round_quotas
from aegaeon_scheduler.simulator.catalog import ModelShape
from aegaeon_scheduler.simulator.controller import SimulatedCommand
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.objective import Objective
from aegaeon_scheduler.simulator.tickets import Ticket

#: Longest quota, as published.
MAX_QUOTA_NS = 4_000_000_000


@dataclass(slots=True, eq=False)
class DecodeBatch:
    """Sequences of one model that are decoded together."""

    shape: ModelShape
    members: dict[int, Ticket] = field(default_factory=dict)
    #: Set while the worker has it as a turn.
    turn_id: int = 0
    quota_ns: int = 0
    started: bool = False

    def kv_bytes(self) -> int:
        """KV of all members."""
        return sum(ticket.kv_bytes for ticket in self.members.values())

    def step_ns(self) -> float:
        """Estimated time of a step."""
        context = sum(t.arrival.input_tokens + t.tokens for t in self.members.values())
        return self.shape.profile.decode_ns(max(1, len(self.members)), context)


class DecodeEngine:
    """Batches in order of arrival; every one gets its quota once a round."""

    def __init__(self, epoch: int, machines: Machines, objective: Objective) -> None:
        self.epoch = epoch
        self.batches: list[DecodeBatch] = []
        self._machines = machines
        self._tpot_ns = objective.tpot_ns
        #: Of the present round, not yet at the worker.
        self._round: list[DecodeBatch] = []
        self._last_turn_id = 0

    def can_merge(self, ticket: Ticket) -> bool:
        """A batch of the request's model has room for it."""
        return self._mergeable(ticket) is not None

    def add(self, ticket: Ticket) -> list[SimulatedCommand]:
        """Take in a prefilled sequence."""
        batch = self._mergeable(ticket)
        if batch is None:
            return self.take(DecodeBatch(ticket.shape, {ticket.handle: ticket}))
        batch.members[ticket.handle] = ticket
        if batch.turn_id:
            return [JoinTurn(self.epoch, batch.turn_id, (ticket.handle,))]
        return []

    def take(self, batch: DecodeBatch) -> list[SimulatedCommand]:
        """Put a batch at the end of the work list, to run from the next round on."""
        self.batches.append(batch)
        return self._fill()

    def give_away(self) -> DecodeBatch | None:
        """The youngest batch that has never been at the worker, if any."""
        for batch in reversed(self.batches):
            if not batch.started and not batch.turn_id:
                self._drop(batch)
                return batch
        return None

    def remove(self, ticket: Ticket) -> None:
        """A sequence has ended."""
        for batch in self.batches:
            batch.members.pop(ticket.handle, None)

    def end_turn(self, turn_id: int) -> list[SimulatedCommand]:
        """A turn is over: its batch waits for the next round, unless it is empty."""
        for batch in list(self.batches):
            if batch.turn_id == turn_id:
                batch.turn_id = batch.quota_ns = 0
            if not batch.members and not batch.turn_id:
                self._drop(batch)
        return self._fill()

    def _drop(self, batch: DecodeBatch) -> None:
        self.batches.remove(batch)
        if batch in self._round:
            self._round.remove(batch)

    def _mergeable(self, ticket: Ticket) -> DecodeBatch | None:
        room = self._machines.device.pool_bytes - ticket.shape.packed_bytes
        for batch in self.batches:
            if (
                batch.shape.name == ticket.shape.name
                and (batch.members or not batch.turn_id)
                and len(batch.members) < self._machines.max_batch_sequences
                and batch.kv_bytes() + ticket.kv_bytes <= room
            ):
                return batch
        return None

    def _fill(self) -> list[SimulatedCommand]:
        """Keep the worker's two turns filled from the round, and begin rounds when one is over."""
        out: list[SimulatedCommand] = []
        at_worker = [batch for batch in self.batches if batch.turn_id]
        while len(at_worker) < 2:
            if not self._round and not self._begin_round():
                break
            batch = self._round.pop(0)
            self._last_turn_id += 1
            batch.turn_id, batch.started = self._last_turn_id, True
            at_worker.append(batch)
            after = (self._round or at_worker)[0].shape.name
            out.append(
                QueueTurn(
                    self.epoch,
                    batch.turn_id,
                    batch.shape.name,
                    tuple(batch.members),
                    batch.quota_ns,
                    after,
                )
            )
        out += self._limit(at_worker)
        return out

    def _begin_round(self) -> bool:
        """Order the batches that wait, models together, first come first, with their quotas."""
        waiting = [batch for batch in self.batches if not batch.turn_id]
        if not waiting:
            return False
        models = list(dict.fromkeys(batch.shape.name for batch in waiting))
        self._round = sorted(waiting, key=lambda batch: models.index(batch.shape.name))
        for batch, quota in zip(self.batches, self._quotas(), strict=True):
            if batch in self._round:
                batch.quota_ns = quota if len(self.batches) > 1 else 0
        return True

    def _limit(self, at_worker: list[DecodeBatch]) -> list[SimulatedCommand]:
        """A turn that began alone must end once there are others."""
        out: list[SimulatedCommand] = []
        if len(self.batches) < 2:
            return out
        for batch, quota in zip(self.batches, self._quotas(), strict=True):
            if batch in at_worker and not batch.quota_ns:
                batch.quota_ns = quota
                out.append(LimitTurn(self.epoch, batch.turn_id, quota))
        return out

    def _quotas(self) -> list[int]:
        link = self._machines.device.link_bytes_per_s / 1e9
        shapes = {batch.shape.name: batch.shape for batch in self.batches}
        switch_ns = sum(shape.packed_bytes for shape in shapes.values()) / link
        steps = [batch.step_ns() for batch in self.batches]
        deadlines = [self._tpot_ns] * len(steps)
        quotas = round_quotas(steps, switch_ns, deadlines, MAX_QUOTA_NS)
        return [max(1, int(quota)) for quota in quotas]
