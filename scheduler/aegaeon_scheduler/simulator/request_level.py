"""Request-level scaling: an engine serves one model until its requests have finished."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.values import FinishReason
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.tickets import Ticket, add_sequence
from aegaeon_scheduler.simulator.workload import Arrival


@dataclass(slots=True, eq=False)
class Session:
    """One model on one engine, from its first request to its last."""

    epoch: int
    model: str
    turn_id: int
    members: dict[int, Ticket] = field(default_factory=dict)


class RequestLevelPolicy:
    """All engines serve; arrivals of a running model join its batch, others wait in one queue.

    The longest waiting model gets the next free engine, with all its requests. What will probably
    follow is prefetched meanwhile.
    """

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._tickets: dict[int, Ticket] = {}
        self._sessions: dict[int, Session] = {}
        #: Requests without an engine by model, longest waiting model first.
        self._waiting: dict[str, dict[int, Ticket]] = {}
        self._free = [worker.epoch for worker in machines.workers()]
        #: The model that an engine prefetches.
        self._hints: dict[int, str] = {}
        self._last_turn_id = 0

    def submit(self, arrival: Arrival, now_ns: int) -> tuple[int, list[commands.Command]]:
        """See `Controller`."""
        ticket = Ticket(len(self._tickets) + 1, arrival, self._machines.shapes[arrival.model])
        self._tickets[ticket.handle] = ticket
        session = self._joinable(ticket)
        if session is not None:
            session.members[ticket.handle] = ticket
            join = commands.JoinTurn(session.epoch, session.turn_id, (ticket.handle,))
            return ticket.handle, [add_sequence(session.epoch, ticket), join]
        self._waiting.setdefault(arrival.model, {})[ticket.handle] = ticket
        return ticket.handle, self._start_sessions()

    def requests_of(self, step: events.StepDone) -> list[int]:
        """See `Controller`."""
        return list(step.handles)

    def handle(self, event: events.Event, now_ns: int) -> list[commands.Command]:
        """See `Controller`."""
        match event:
            case events.StepDone():
                session = self._sessions[event.epoch]
                for handle, reason in zip(event.handles, event.finish_reasons, strict=True):
                    self._tickets[handle].tokens += 1
                    if reason != FinishReason.UNSPECIFIED:
                        del session.members[handle]
            case events.TurnEnded(epoch=epoch):
                del self._sessions[epoch]
                self._free.append(epoch)
                return self._start_sessions()
            case _:
                pass
        return []

    def _joinable(self, ticket: Ticket) -> Session | None:
        room = self._machines.device.pool_bytes - ticket.shape.packed_bytes
        for session in self._sessions.values():
            if session.model == ticket.shape.name and session.members:
                used = sum(other.kv_bytes for other in session.members.values())
                full = len(session.members) >= self._machines.max_batch_sequences
                if not full and used + ticket.kv_bytes <= room:
                    return session
        return None

    def _start_sessions(self) -> list[commands.Command]:
        out: list[commands.Command] = []
        while self._free and self._waiting:
            epoch = self._free.pop(0)
            model = self._choose(epoch)
            tickets = self._waiting.pop(model)
            self._last_turn_id += 1
            self._sessions[epoch] = Session(epoch, model, self._last_turn_id, tickets)
            out += [add_sequence(epoch, ticket) for ticket in tickets.values()]
            hinted = self._hints.values()
            hint = next((name for name in self._waiting if name not in hinted), "")
            self._hints[epoch] = hint
            turn = self._last_turn_id
            out.append(commands.QueueTurn(epoch, turn, model, tuple(tickets), 0, hint))
        return out

    def _choose(self, epoch: int) -> str:
        """What the engine has prefetched, else the longest waiting model that no other has."""
        hint = self._hints.pop(epoch, "")
        if hint in self._waiting:
            return hint
        hinted = self._hints.values()
        free = (name for name in self._waiting if name not in hinted)
        return next(free, next(iter(self._waiting)))
