"""KV that prefill engines hold for sequences that have gone on from them."""

from __future__ import annotations

from aegaeon_scheduler.core.commands import ReleaseSequences
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State


def forget(state: State, sequence: Sequence) -> None:
    """What a prefill engine has computed is of no use any more."""
    sequence.decode_node = ""
    drop(state, sequence)


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
