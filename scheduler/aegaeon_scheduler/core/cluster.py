"""The core's front: one event in, the commands that follow out."""

from __future__ import annotations

from collections.abc import Iterable

from aegaeon.errors import AegaeonError
from aegaeon_scheduler.core import (
    draining,
    events,
    hand_off,
    intake,
    lifecycle,
    prefix_routing,
    recovery,
    requests,
    stealing,
    steps,
    workers,
)
from aegaeon_scheduler.core.backlog import Backlog
from aegaeon_scheduler.core.commands import Command
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.deployment import Deployment
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.estimation.estimates import Estimates
from aegaeon_scheduler.core.operations import Operation, Undeployment
from aegaeon_scheduler.core.policies import planner
from aegaeon_scheduler.core.prefix_places import PrefixPlaces
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import Model, State
from aegaeon_scheduler.core.values import GenerationRequest, ModelSpec

#: Events after which another set of engines can run a model.
_CHANGES_ROUTES = (
    events.WorkerReady,
    events.ModelLoaded,
    events.ModelFailed,
    events.ModelUnloaded,
)


class Cluster:
    """Requests, replicas, engines and their turns. Same events, same commands."""

    def __init__(self, config: CoreConfig) -> None:
        self.state = State(
            config,
            config.placement,
            config.routing,
            config.stealing_min_batch_gap,
            planner(config),
            Estimates(config.profiles, dict(config.profile_names)),
            PrefixPlaces(config.prefix_index_blocks),
        )

    def submit(
        self, request: GenerationRequest, backlog: Backlog, now_ns: int
    ) -> tuple[Sequence, list[Command]]:
        """Accept a request whose tokens go to ``backlog``; raises the `AegaeonError` that refuses
        it."""
        sequence = intake.submit(self.state, request, backlog, now_ns)
        return sequence, self._settle(now_ns)

    def submit_all(
        self, requests: Iterable[GenerationRequest], backlog: Backlog, now_ns: int
    ) -> tuple[list[Sequence | AegaeonError], list[Command]]:
        """Accept requests that came together, and plan only then, so that those of a model share
        its first step. Per request: its sequence, or the error that refuses it."""
        outcomes = [self._submit(request, backlog, now_ns) for request in requests]
        return outcomes, self._settle(now_ns)

    def handle(self, event: events.Event, now_ns: int) -> list[Command]:
        """Take in what happened. Events of registrations that have ended change nothing."""
        if isinstance(event, events.StepDone):  # by far the most frequent
            engine = self.state.engines.get(event.epoch)
            if engine is not None:
                steps.on_step(self.state, engine, event, now_ns)
        else:
            self._dispatch(event, now_ns)
        return self._settle(now_ns)

    def next_due_ns(self) -> int | None:
        """When to send the next `Tick`, or None while nothing is due."""
        return self.state.next_due_ns()

    def audit(self) -> list[str]:
        """Every contradiction between the ledgers; none when they are sound."""
        found = [text for engine in self.state.engines.values() for text in engine.audit()]
        held = sum(len(engine.sequences) for engine in self.state.engines.values())
        orphans = sum(len(waiting) for waiting in self.state.orphans.values())
        if held + orphans != len(self.state.sequences):
            found.append(f"{held} held + {orphans} waiting != {len(self.state.sequences)} requests")
        homes = {(name, node) for name, nodes in self.state.homes.items() for node in nodes}
        kept = {(name, n.node_id) for n in self.state.nodes.values() for name in n.replicas}
        if homes != kept:
            found.append(f"replicas are on {sorted(kept)}, but are known on {sorted(homes)}")
        for node in self.state.nodes.values():
            counts = (
                node.active_requests,
                sum(replica.active_requests for replica in node.replicas.values()),
                sum(len(engine.sequences) for engine in node.engines.values()),
            )
            if len(set(counts)) > 1:
                found.append(
                    f"{node.node_id}, its replicas and its engines count {counts} requests"
                )
        for sequence in self.state.sequences.values():
            engine = self.state.engine_of(sequence)
            if engine is not None and engine.sequences.get(sequence.handle) is not sequence:
                found.append(f"request {sequence.sequence_id} is not on {engine.engine_id}")
            if sequence.paused != (sequence.sequence_id in sequence.backlog.paused):
                found.append(f"request {sequence.sequence_id} pauses here or at its reader alone")
            source = sequence.source
            if source is not None and source.handle not in self.state.engines[source.epoch].held:
                found.append(f"nobody holds the KV of request {sequence.sequence_id}")
        tokens = sum(s.reserved_tokens for s in self.state.sequences.values())
        if tokens != self.state.reserved_tokens:
            found.append(f"{self.state.reserved_tokens} tokens reserved, {tokens} in requests")
        return found + prefix_routing.audit(self.state)

    def _submit(
        self, request: GenerationRequest, backlog: Backlog, now_ns: int
    ) -> Sequence | AegaeonError:
        try:
            return intake.submit(self.state, request, backlog, now_ns)
        except AegaeonError as error:
            return error

    def _dispatch(self, event: events.Event, now_ns: int) -> None:
        state = self.state
        match event:
            case events.CancelRequested():
                requests.cancel(state, event.sequence_id, event.error)
            case events.ReaderCaughtUp():
                requests.resume(state, event.sequence_id, now_ns)
            case events.Tick():
                requests.ring(state, now_ns)
                recovery.retry(state, now_ns)
            case events.WorkerRegistered():
                workers.on_registered(state, event, now_ns)
            case events.DeployRequested() | events.UndeployRequested():
                self._enqueue(event)
            case events.ModelInspected():
                self._inspected(event)
            case events.DrainRequested() | events.TopologyApplied() | events.ClusterRestored():
                self._dispatch_wish(event, now_ns)
            case _:
                engine = state.engines.get(event.epoch)
                if engine is None:
                    workers.on_follower_event(state, event.epoch, event)
                    return
                if isinstance(event, _CHANGES_ROUTES):
                    state.routes.clear()
                self._dispatch_engine(engine, event, now_ns)
                if isinstance(event, _CHANGES_ROUTES):  # routes of half the change may be kept
                    state.routes.clear()
                    state.renew_hand_offs(_models_of(engine, event))

    def _dispatch_wish(
        self,
        event: events.DrainRequested | events.TopologyApplied | events.ClusterRestored,
        now_ns: int,
    ) -> None:
        state = self.state
        match event:
            case events.DrainRequested():
                engines = [e for epoch in event.epochs if (e := state.engines.get(epoch))]
                change = draining.resume if event.resume else draining.drain
                change(state, engines, now_ns)
            case events.TopologyApplied():
                state.topology = frozenset(node.node_id for node in event.nodes)
                state.placement, state.routing = event.placement, event.routing
                state.stealing_min_batch_gap = event.stealing_min_batch_gap
            case events.ClusterRestored(known=known):
                recovery.restore(state, known, now_ns)

    def _dispatch_engine(self, engine: Engine, event: events.Event, now_ns: int) -> None:
        state = self.state
        match event:
            case events.MemoryReported():
                engine.usage = event.memory
                prefix_routing.on_memory(state, engine, event.memory)
            case events.WorkerReady():
                workers.on_ready(state, engine, event, now_ns)
            case events.WorkerLost():
                workers.lose(state, engine, event.reason, now_ns)
            case events.LoadProgressed():
                workers.on_load_progressed(state, engine, event)
            case events.ModelLoaded():
                workers.on_model_loaded(state, engine, event, now_ns)
            case events.ModelFailed():
                workers.on_model_failed(state, engine, event, now_ns)
            case events.ModelUnloaded():
                workers.on_model_unloaded(state, engine, event)
            case _:
                self._dispatch_turn(engine, event, now_ns)

    def _dispatch_turn(self, engine: Engine, event: events.Event, now_ns: int) -> None:
        state = self.state
        match event:
            case events.TurnStarted():
                steps.on_turn_started(state, engine, event, now_ns)
            case events.TurnEnded():
                steps.on_turn_ended(state, engine, event, now_ns)
            case events.SequenceFailed():
                steps.on_sequence_failed(state, engine, event)
            case events.SequenceHandedOff():
                hand_off.on_handed_off(state, engine, event, now_ns)
            case events.SequenceFetched():
                hand_off.on_fetched(state, engine, event, now_ns)
            case events.SequenceImported():
                hand_off.on_imported(state, engine, event)
            case events.SequenceReused():
                steps.on_sequence_reused(state, engine, event)

    def _enqueue(self, event: events.DeployRequested | events.UndeployRequested) -> None:
        operation: Operation
        if isinstance(event, events.DeployRequested):
            name, spec = event.spec.name, event.spec
            operation = Deployment(
                event.operation_id, event.spec, event.replica_count, event.node_ids
            )
        else:
            # Without such a model the operation still runs, to report just that.
            name, spec = event.name, ModelSpec(event.name, "")
            operation = Undeployment(event.operation_id, event.name, event.node_ids)
        model = self.state.models.setdefault(name, Model(spec))
        model.operations.append(operation)
        self.state.touch(name)

    def _inspected(self, event: events.ModelInspected) -> None:
        for name, model in self.state.models.items():
            head = model.operations[0] if model.operations else None
            if isinstance(head, Deployment) and head.operation_id == event.operation_id:
                head.inspected = event
                self.state.touch(name)

    def _settle(self, now_ns: int) -> list[Command]:
        """Let operations go on, plan turns again where something changed, collect commands."""
        state = self.state
        while state.touched:
            names, state.touched = state.touched, {}
            for name in names:
                lifecycle.advance(state, name, now_ns)
                self._run_operations(name, now_ns)
        while state.stale:
            engines, state.stale = state.stale, {}
            for engine in engines.values():
                state.planner.replan(engine, now_ns, state.out)
            if state.stealing_min_batch_gap:
                for engine in engines.values():
                    stealing.steal(state, engine, now_ns)
        return state.out.drain()

    def _run_operations(self, name: str, now_ns: int) -> None:
        model = self.state.models.get(name)
        if model is None:
            return
        while model.operations and model.operations[0].advance(self.state, now_ns):
            model.operations.popleft()
        self.state.forget_if_unused(name)


def _models_of(engine: Engine, event: events.Event) -> Iterable[str]:
    """Models whose engines an event of `_CHANGES_ROUTES` has changed."""
    match event:
        case events.ModelLoaded(spec=spec):
            return [spec.name]
        case events.ModelFailed(model=model) | events.ModelUnloaded(model=model):
            return [model]
        case _:
            return engine.loaded
