"""Sequences go from prefill to decode engines, and their KV is held until it has been copied."""

from __future__ import annotations

from aegaeon_scheduler.core import kv_sources, requests
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.events import (
    SequenceFetched,
    SequenceHandedOff,
    SequenceImported,
)
from aegaeon_scheduler.core.notices import KvMoved, RequestChange
from aegaeon_scheduler.core.sequence import KvSource, Sequence
from aegaeon_scheduler.core.state import State


def on_handed_off(state: State, engine: Engine, event: SequenceHandedOff, now_ns: int) -> None:
    """A sequence has left a prefill engine: it goes on at a decode engine."""
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
    sequence.prefilled_on = engine.identity.node_id
    requests.route(state, sequence, RequestChange.HANDED_OFF, now_ns)


def on_fetched(state: State, engine: Engine, event: SequenceFetched, now_ns: int) -> None:
    """A sequence's KV has come from another node, as far as it does: it may have a turn now."""
    sequence = engine.sequences.get(event.handle)
    if sequence is None or not sequence.fetched_from:
        return
    source, sequence.fetched_from = sequence.fetched_from, ""
    node = engine.identity.node_id
    statistics = state.statistics
    if source == node:
        statistics.import_time_ns += event.transfer_time_ns if event.num_bytes else 0
        statistics.imported_bytes += event.num_bytes
    else:
        statistics.fetched += event.fetched_tokens > 0
        statistics.fetch_time_ns += event.transfer_time_ns
        statistics.fetched_bytes += event.num_bytes
        statistics.fetch_interruptions += event.interruptions
    if event.refusal:
        # Told of by the import that follows, if anything comes of it.
        state.links.between(source, node).device_obstacle = event.refusal
        engine.resume(sequence, now_ns)
        state.mark(engine)
        return
    link = state.links.between(source, node, on_device=True)
    if event.num_bytes:
        link.measured(event.num_bytes, event.transfer_time_ns)
    if event.interruptions:
        link.interrupted(event.interruptions, now_ns)
    state.out.publish(
        KvMoved(
            sequence.sequence_id,
            sequence.model,
            source,
            engine.engine_id,
            link.transport,
            event.fetched_tokens,
            event.num_bytes,
            event.transfer_time_ns,
            event.interruptions,
        )
    )
    engine.resume(sequence, now_ns)
    state.mark(engine)


def on_imported(state: State, engine: Engine, event: SequenceImported) -> None:
    """A sequence's KV is on its decode engine, or will be computed there: the source may go."""
    sequence = engine.sequences.get(event.handle)
    if sequence is None or sequence.source is None:
        return
    statistics = state.statistics
    statistics.recomputed += not event.imported_tokens
    statistics.import_time_ns += event.copy_time_ns
    statistics.imported_bytes += event.num_bytes
    _note_import(state, sequence, sequence.source, engine, event)
    kv_sources.drop(state, sequence)


def _note_import(
    state: State, sequence: Sequence, source: KvSource, engine: Engine, event: SequenceImported
) -> None:
    """What came straight from a slab of the node; what was fetched before has been noted."""
    node = engine.identity.node_id
    holder = state.engines[source.epoch]
    came_before = event.imported_tokens and not event.num_bytes
    if holder.identity.node_id != node or came_before:
        return
    link = state.links.between(node, node)
    if not source.place.offer:
        link.device_obstacle = holder.offer_obstacles.get(sequence.model, "")
    if event.num_bytes:
        link.measured(event.num_bytes, event.copy_time_ns)
    state.out.publish(
        KvMoved(
            sequence.sequence_id,
            sequence.model,
            node,
            engine.engine_id,
            link.transport,
            event.imported_tokens,
            event.num_bytes,
            event.copy_time_ns,
        )
    )
