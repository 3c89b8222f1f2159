"""KV that prefill engines hold for sequences that have gone on from them."""

from __future__ import annotations

from dataclasses import replace

from aegaeon_scheduler.core.commands import ReleaseSequences
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import KvPlace


def forget(state: State, sequence: Sequence) -> None:
    """What a prefill engine has computed is of no use any more."""
    sequence.prefilled_on = ""
    drop(state, sequence)


def place_for(state: State, sequence: Sequence, engine: Engine) -> KvPlace | None:
    """Where an engine finds a sequence's KV: in its node's slabs, or on another node, from which it
    is fetched first.
    """
    if sequence.source is None:
        return None
    holder = state.engines[sequence.source.epoch].identity
    if holder.node_id == engine.identity.node_id:
        return sequence.source.place
    sequence.fetched_from = holder.node_id
    return replace(sequence.source.place, address=holder.address)


def drop(state: State, sequence: Sequence) -> None:
    """Free the KV that a prefill engine holds for a sequence, if one does.

    Where a sequence is cancelled, the engine that was to copy the KV may be about to: it finds
    other blocks, or none, and nobody hears of what it makes of them.
    """
    source, sequence.source = sequence.source, None
    if source is None:
        return
    engine = state.engines.get(source.epoch)
    if engine is not None:
        del engine.held[source.handle]
        state.out.add(ReleaseSequences(source.epoch, (source.handle,)))
        state.touch(sequence.model)
