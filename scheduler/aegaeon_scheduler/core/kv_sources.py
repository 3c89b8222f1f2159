"""KV that prefill engines hold for sequences that have gone on from them."""

from __future__ import annotations

from dataclasses import replace

from aegaeon.capability import NO_CAPABILITIES, Capability
from aegaeon_scheduler.core.commands import ReleaseSequences
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import KvPlace

_FETCH = frozenset({Capability.KV_FETCH})
_PIECES = frozenset({Capability.TENSOR_PARALLELISM})
_OFFERS = frozenset({Capability.KV_OFFERS})


def forget(state: State, sequence: Sequence) -> None:
    """What a prefill engine has computed is of no use any more."""
    sequence.prefilled_on = ""
    drop(state, sequence)


def place_for(state: State, sequence: Sequence, engine: Engine) -> KvPlace | None:
    """Where an engine finds a sequence's KV: in its node's slabs, or on another device or node,
    from which it is fetched first. None where it computes it: there is none, or it could not read
    it.
    """
    if sequence.source is None:
        return None
    holder, place = state.engines[sequence.source.epoch], sequence.source.place
    near = holder.identity.node_id == engine.identity.node_id
    reachable = near or (holder.knows(_FETCH) and engine.knows(_FETCH))
    needs = (_PIECES if place.pieces > 1 else NO_CAPABILITIES) | (
        _OFFERS if place.offer else NO_CAPABILITIES
    )
    if not reachable or not engine.knows(needs):
        state.statistics.recomputed += 1
        drop(state, sequence)
        return None
    if place.offer or not near:
        sequence.fetched_from = holder.identity.node_id
    if near:
        return place
    return replace(place, address=holder.identity.address)


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
