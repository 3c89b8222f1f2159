"""Static multiplexing: models share devices as far as memory goes; nothing is ever switched."""

from __future__ import annotations

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.values import FinishReason
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.tickets import Ticket, add_sequence
from aegaeon_scheduler.simulator.workload import Arrival

#: Turns of the models on one device, which cost nothing to change.
QUANTUM_NS = 50_000_000
#: Room that every model must have for KV, as a share of a device.
_KV_SHARE = 0.05


class StaticMultiplexing:
    """Every model has one engine for good; models that fit nowhere are not served."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._tickets: dict[int, Ticket] = {}
        self._home = _place(machines)
        epochs = [worker.epoch for worker in machines.workers()]
        #: Unfinished requests by engine and model, next model first.
        self._work: dict[int, dict[str, dict[int, Ticket]]] = {epoch: {} for epoch in epochs}
        self._turns: dict[int, tuple[int, str]] = {}
        self._last_turn_id = 0

    def submit(self, arrival: Arrival, now_ns: int) -> tuple[int, list[commands.Command]]:
        """See `Controller`."""
        epoch = self._home.get(arrival.model)
        if epoch is None:
            return 0, []
        ticket = Ticket(len(self._tickets) + 1, arrival, self._machines.shapes[arrival.model])
        self._tickets[ticket.handle] = ticket
        self._work[epoch].setdefault(arrival.model, {})[ticket.handle] = ticket
        out: list[commands.Command] = [add_sequence(epoch, ticket)]
        turn_id, model = self._turns.get(epoch, (0, ""))
        if model == arrival.model:
            out.append(commands.JoinTurn(epoch, turn_id, (ticket.handle,)))
        return ticket.handle, out + self._next(epoch)

    def requests_of(self, step: events.StepDone) -> list[int]:
        """See `Controller`."""
        return list(step.handles)

    def handle(self, event: events.Event, now_ns: int) -> list[commands.Command]:
        """See `Controller`."""
        match event:
            case events.StepDone():
                for handle, reason in zip(event.handles, event.finish_reasons, strict=True):
                    if reason != FinishReason.UNSPECIFIED:
                        model = self._tickets[handle].arrival.model
                        del self._work[event.epoch][model][handle]
            case events.TurnEnded(epoch=epoch):
                _, model = self._turns.pop(epoch)
                left = self._work[epoch].pop(model)
                if left:
                    self._work[epoch][model] = left
                return self._next(epoch)
            case _:
                pass
        return []

    def _next(self, epoch: int) -> list[commands.Command]:
        if epoch in self._turns or not self._work[epoch]:
            return []
        model, tickets = next(iter(self._work[epoch].items()))
        self._last_turn_id += 1
        turn = self._last_turn_id
        self._turns[epoch] = (turn, model)
        return [commands.QueueTurn(epoch, turn, model, tuple(tickets), QUANTUM_NS, "")]


def _place(machines: Machines) -> dict[str, int]:
    """Engine of each model: the one with the most room left, largest models first."""
    room = {worker.epoch: float(machines.device.pool_bytes) for worker in machines.workers()}
    reserve = machines.device.pool_bytes * _KV_SHARE
    home = {}
    for shape in sorted(machines.shapes.values(), key=lambda shape: -shape.packed_bytes):
        epoch = max(room, key=lambda epoch: (room[epoch], -epoch))
        if room[epoch] >= shape.packed_bytes + reserve:
            room[epoch] -= shape.packed_bytes + reserve
            home[shape.name] = epoch
    return home
