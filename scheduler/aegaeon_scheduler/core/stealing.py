"""An idle decode engine takes one whole batch that has never run from a loaded one of its node.

No turn at the loser has named such a batch, so nothing of it has been computed or copied there: the
loser forgets it, and the winner gets it under new handles with the same KV.
"""

from __future__ import annotations

from aegaeon_scheduler.core import requests
from aegaeon_scheduler.core.batch import Batch
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import EngineRole


def steal(state: State, thief: Engine, now_ns: int) -> None:
    """Let an engine take a batch, if it is an idle decode engine and another one has too many."""
    if thief.role is not EngineRole.DECODE or not thief.ready or thief.draining or thief.sequences:
        return
    node = state.nodes[thief.identity.node_id]
    loaded = [
        (len(state.planner.batches(engine)), -engine.identity.worker_index, engine)
        for engine in node.ready_engines()
        if engine.role is EngineRole.DECODE and engine is not thief
    ]
    if not loaded:
        return
    lead, _, victim = max(loaded, key=lambda entry: entry[:2])
    if lead < state.stealing_min_batch_gap:
        return
    for batch in reversed(state.planner.batches(victim)):
        if not batch.begun and _can_take(thief, batch):
            state.statistics.stolen_batches += 1
            state.statistics.stolen_sequences += len(batch.members)
            requests.move(state, list(batch.members.values()), victim, thief, now_ns)
            return


def _can_take(thief: Engine, batch: Batch) -> bool:
    pool_bytes = thief.identity.device.pool_bytes
    return (
        batch.model in thief.loaded
        and batch.model not in thief.unloading
        and all(
            sequence.pool_bytes <= pool_bytes and thief.knows(sequence.needs)
            for sequence in batch.members.values()
        )
    )
