"""Takes work off an engine that is to be stopped, so that nobody notices when it is."""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_scheduler.core import requests
from aegaeon_scheduler.core.commands import CancelSequences
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.notices import RequestChange, WorkerChange, WorkerChanged
from aegaeon_scheduler.core.routing import route_of
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State


def drain(state: State, engines: list[Engine], now_ns: int) -> None:
    """Give engines no new sequence, and move those that they have to others.

    A sequence that no other engine can take stays and ends where it is; a new request waits for the
    engine to come back, as it does for one that is lost. What was computed of a
    sequence is computed again elsewhere, unless its KV still lies in the node's slabs.
    """
    for engine in engines:
        if not engine.draining:
            engine.draining_since_ns = now_ns
        _publish(state, engine, WorkerChange.DRAINING)
    _routes_changed(state, engines)
    for engine in engines:
        _move(state, engine, now_ns)


def resume(state: State, engines: list[Engine], now_ns: int) -> None:
    """Let engines that were to be stopped take part again."""
    for engine in engines:
        if engine.draining:
            engine.draining_since_ns = -1
            _publish(state, engine, WorkerChange.CONNECTED)
    _routes_changed(state, engines)
    for model in {model for engine in engines for model in engine.loaded}:
        requests.route_orphans(state, model, now_ns)


def drained(engine: Engine) -> bool:
    """Nothing is left that would be lost with the engine."""
    return not (engine.sequences or engine.ending or engine.held or engine.turns)


def unserved_models(state: State) -> Iterator[str]:
    """Models that only engines that are to be stopped can run, by name."""
    for name in sorted({model for e in state.engines.values() if e.draining for model in e.loaded}):
        if name in state.models and route_of(state, name).largest is None:
            yield name


def _move(state: State, engine: Engine, now_ns: int) -> None:
    moving = [s for s in engine.sequences.values() if _fits_elsewhere(state, s)]
    if not moving:
        return
    handles = tuple(sequence.handle for sequence in moving)
    engine.ending.update({sequence.handle: sequence.model for sequence in moving})
    state.out.add(CancelSequences(engine.epoch, handles))
    for sequence in moving:
        requests.detach(state, sequence)
        if sequence.source is None:
            sequence.prefilled_on = ""
        requests.route(state, sequence, RequestChange.RECOVERED, now_ns)
        state.statistics.recovered += 1


def _fits_elsewhere(state: State, sequence: Sequence) -> bool:
    return any(
        engine.identity.device.pool_bytes >= sequence.pool_bytes
        for _, engines in route_of(state, sequence.model, sequence.needs).nodes
        for engine in engines
    )


def _routes_changed(state: State, engines: list[Engine]) -> None:
    state.routes.clear()
    state.renew_hand_offs(sorted({model for engine in engines for model in engine.loaded}))


def _publish(state: State, engine: Engine, change: WorkerChange) -> None:
    identity = engine.identity
    state.out.publish(WorkerChanged(identity.node_id, identity.worker_index, engine.epoch, change))
