"""A dedicated prefill engine of the published policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_scheduler.core.commands import JoinTurn, QueueTurn
from aegaeon_scheduler.simulator.catalog import ModelShape
from aegaeon_scheduler.simulator.controller import SimulatedCommand
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.tickets import Ticket

#: Requests of one group at most, those that have left it included.
MAX_GROUP = 8


@dataclass(slots=True, eq=False)
class Group:
    """Requests of one model that are prefilled one after another."""

    shape: ModelShape
    size: int = 0
    members: dict[int, Ticket] = field(default_factory=dict)
    #: Set once the worker has it as a turn.
    turn_id: int = 0


class PrefillEngine:
    """Groups first come, first served; the worker has the running one and the next."""

    def __init__(self, epoch: int, machines: Machines) -> None:
        self.epoch = epoch
        self._link = machines.device.link_bytes_per_s / 1e9
        self._groups: list[Group] = []
        self._last_turn_id = 0

    def load_ns(self) -> float:
        """Estimated time to finish all groups, switches between them included."""
        total = 0.0
        for group in self._groups:
            total += group.shape.packed_bytes / self._link
            for ticket in group.members.values():
                total += group.shape.profile.prefill_ns(ticket.arrival.input_tokens)
        return total

    def has_open_group(self, ticket: Ticket) -> bool:
        """A group of the request's model takes in more."""
        return self._open_group(ticket) is not None

    def add(self, ticket: Ticket) -> list[SimulatedCommand]:
        """Put a request into an open group, or into a new one at the end."""
        group = self._open_group(ticket)
        if group is None:
            group = Group(ticket.shape)
            self._groups.append(group)
        group.size += 1
        group.members[ticket.handle] = ticket
        if group.turn_id:
            return [JoinTurn(self.epoch, group.turn_id, (ticket.handle,))]
        return self._fill()

    def remove(self, ticket: Ticket) -> None:
        """A request has its first token."""
        for group in self._groups:
            group.members.pop(ticket.handle, None)

    def end_turn(self, turn_id: int) -> list[SimulatedCommand]:
        """The worker is done with a group."""
        self._groups = [group for group in self._groups if group.turn_id != turn_id]
        return self._fill()

    def _open_group(self, ticket: Ticket) -> Group | None:
        for group in self._groups:
            # A group whose last member has left ends its turn now.
            joinable = group.size < MAX_GROUP and (group.members or not group.turn_id)
            if group.shape.name == ticket.shape.name and joinable:
                return group
        return None

    def _fill(self) -> list[SimulatedCommand]:
        out: list[SimulatedCommand] = []
        for index, group in enumerate(self._groups[:2]):
            if group.turn_id:
                continue
            self._last_turn_id += 1
            group.turn_id = self._last_turn_id
            after = self._groups[index + 1].shape.name if index + 1 < len(self._groups) else ""
            out.append(
                QueueTurn(
                    self.epoch, group.turn_id, group.shape.name, tuple(group.members), 0, after
                )
            )
        return out
