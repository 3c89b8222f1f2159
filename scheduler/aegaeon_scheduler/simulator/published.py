"""The published policy: dedicated prefill and decode engines, as in the paper's algorithms."""

from __future__ import annotations

from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.values import FinishReason
from aegaeon_scheduler.simulator.controller import HandOver, SimulatedCommand
from aegaeon_scheduler.simulator.decode_rounds import DecodeEngine
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.objective import Objective
from aegaeon_scheduler.simulator.prefill_groups import PrefillEngine
from aegaeon_scheduler.simulator.tickets import Ticket, add_sequence
from aegaeon_scheduler.simulator.workload import Arrival

#: An idle engine takes a batch from one that has at least so many more.
MIN_BATCH_GAP = 2


class PublishedPolicy:
    """Grouped first-come-first-served prefill, decode rounds with quotas, work stealing.

    Per node, the first engines prefill and the others decode. A model has one node, as a deployment
    of one replica gives it, so that its requests meet in one batch.
    """

    def __init__(
        self, machines: Machines, objective: Objective, prefill_engines_per_node: int = 3
    ) -> None:
        self._tickets: dict[int, Ticket] = {}
        self._prefill: dict[int, PrefillEngine] = {}
        self._decode: dict[int, DecodeEngine] = {}
        self._machines = machines
        self._node = {name: index % machines.nodes for index, name in enumerate(machines.shapes)}
        for worker in machines.workers():
            epoch = worker.epoch
            if (epoch - 1) % machines.engines_per_node < prefill_engines_per_node:
                self._prefill[epoch] = PrefillEngine(epoch, machines)
            else:
                self._decode[epoch] = DecodeEngine(epoch, machines, objective)

    def submit(self, arrival: Arrival, now_ns: int) -> tuple[int, list[SimulatedCommand]]:
        """See `Controller`."""
        ticket = Ticket(len(self._tickets) + 1, arrival, self._machines.shapes[arrival.model])
        self._tickets[ticket.handle] = ticket
        node = self._node[arrival.model]
        engines = [e for e in self._prefill.values() if self._machines.node_of(e.epoch) == node]
        engine = next((e for e in engines if e.has_open_group(ticket)), None)
        if engine is None:
            engine = min(engines, key=PrefillEngine.load_ns)
        return ticket.handle, [add_sequence(engine.epoch, ticket), *engine.add(ticket)]

    def handle(self, event: events.Event, now_ns: int) -> list[SimulatedCommand]:
        """See `Controller`."""
        match event:
            case events.StepDone(epoch=epoch) if epoch in self._prefill:
                return self._prefilled(event)
            case events.StepDone():
                return self._decoded(event)
            case events.TurnEnded(epoch=epoch) if epoch in self._prefill:
                return self._prefill[epoch].end_turn(event.turn_id)
            case events.TurnEnded(epoch=epoch):
                engine = self._decode[epoch]
                return [*engine.end_turn(event.turn_id), *self._steal(engine)]
            case _:
                return []

    def _prefilled(self, event: events.StepDone) -> list[SimulatedCommand]:
        """First tokens are there: their sequences go on to decode engines of the node."""
        out: list[SimulatedCommand] = []
        source = self._prefill[event.epoch]
        for handle, reason in zip(event.handles, event.finish_reasons, strict=True):
            ticket = self._tickets[handle]
            ticket.tokens += 1
            source.remove(ticket)
            if reason != FinishReason.UNSPECIFIED:
                continue
            target = self._choose_decode(ticket, event.epoch)
            out.append(HandOver(event.epoch, handle, target.epoch))
            out += target.add(ticket)
        return out

    def _decoded(self, event: events.StepDone) -> list[SimulatedCommand]:
        engine = self._decode[event.epoch]
        for handle, reason in zip(event.handles, event.finish_reasons, strict=True):
            ticket = self._tickets[handle]
            ticket.tokens += 1
            if reason != FinishReason.UNSPECIFIED:
                engine.remove(ticket)
        return []

    def _choose_decode(self, ticket: Ticket, source: int) -> DecodeEngine:
        """The engine that decodes the model already, else the one with the fewest batches."""
        node = self._machines.node_of(source)
        engines = [e for e in self._decode.values() if self._machines.node_of(e.epoch) == node]
        for engine in engines:
            if engine.can_merge(ticket):
                return engine
        return min(engines, key=lambda engine: (len(engine.batches), engine.epoch))

    def _steal(self, thief: DecodeEngine) -> list[SimulatedCommand]:
        """An idle engine takes one whole batch that has never run from a loaded one of its node."""
        if thief.batches:
            return []
        node = self._machines.node_of(thief.epoch)
        engines = [e for e in self._decode.values() if self._machines.node_of(e.epoch) == node]
        victim = max(engines, key=lambda engine: (len(engine.batches), -engine.epoch))
        batch = victim.give_away() if len(victim.batches) >= MIN_BATCH_GAP else None
        if batch is None:
            return []
        moved = [HandOver(victim.epoch, handle, thief.epoch) for handle in batch.members]
        return [*moved, *thief.take(batch)]
