"""Sequences go from prefill to decode engines, and their KV is held until it has been copied."""

from __future__ import annotations

from aegaeon_scheduler.core import kv_sources, requests
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.events import SequenceHandedOff, SequenceImported
from aegaeon_scheduler.core.notices import RequestChange
from aegaeon_scheduler.core.sequence import KvSource
from aegaeon_scheduler.core.state import State


def on_handed_off(state: State, engine: Engine, event: SequenceHandedOff, now_ns: int) -> None:
    """A sequence has left a prefill engine: it goes on at a decode engine of the same node."""
    sequence = engine.sequences.get(event.handle)
    if sequence is None:  # cancelled meanwhile, and the cancel frees what is held
        model = engine.ending.pop(event.handle, None)
        if model is not None:
            state.touch(model)
        return
    requests.detach(state, sequence)
    state.statistics.handed_off += 1
    state.statistics.hand_off_time_ns += event.copy_time_ns
    if event.place.num_tokens:
        engine.held[event.handle] = sequence
        sequence.source = KvSource(engine.epoch, event.handle, event.place)
    else:
        state.statistics.recomputed += 1
    sequence.decode_node = engine.identity.node_id
    requests.route(state, sequence, RequestChange.HANDED_OFF, now_ns)


def on_imported(state: State, engine: Engine, event: SequenceImported) -> None:
    """A sequence's KV is on its decode engine, or will be computed there: the source may go."""
    sequence = engine.sequences.get(event.handle)
    if sequence is None or sequence.source is None:
        return
    statistics = state.statistics
    statistics.recomputed += not event.imported_tokens
    statistics.import_time_ns += event.copy_time_ns
    statistics.imported_bytes += event.num_bytes
    kv_sources.drop(state, sequence)
