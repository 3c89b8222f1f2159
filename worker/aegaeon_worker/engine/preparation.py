"""Making ready for the turns to come."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq

from aegaeon.errors import AegaeonError
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.engine.turn import Turn
from aegaeon_worker.kv.memory_manager import MemoryManager

logger = logging.getLogger(__name__)


def prepare_following(
    turn: Turn, queued: Turn | None, members: Seq[Sequence], memory: MemoryManager
) -> None:
    """Save KV that has to make room for the queued turn and its ``members``, and fetch weights.

    First those of the queued model, then those of the one that will probably follow.
    """
    if queued is not None and queued.model != turn.model:
        wants = ((member.handle, member.num_tokens) for member in members)
        memory.write_backs.advance(queued.model, wants)
    for model in (queued.model if queued else None, turn.prefetch_model):
        if not model or model == turn.model or model in turn.unfetchable:
            continue
        try:
            if not memory.prefetch(model):
                return
        except AegaeonError as error:
            # Its own turn will meet the error again, and answer for it.
            logger.warning("%s cannot be prefetched: %s", model, error)
            turn.unfetchable.add(model)
