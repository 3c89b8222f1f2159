"""Which members of a turn can run, as far as their constraints go."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from concurrent.futures import FIRST_COMPLETED, wait

from aegaeon.errors import AegaeonError
from aegaeon_worker.engine.events import SequenceFailed
from aegaeon_worker.engine.sequence import Sequence

#: How long to wait for the first when all are being compiled, in seconds; commands wait as well.
_WAIT_S = 0.01


def compiled(members: Seq[Sequence], failed: list[SequenceFailed]) -> Seq[Sequence]:
    """Members without those whose constraints are being compiled, which join a later step, and
    without those whose constraints turn out to be wrong, which are added to ``failed``."""
    waiting = [member.text for member in members if member.text is not None]
    if not waiting:
        return members
    if len(waiting) == len(members) and not any(text.done() for text in waiting):
        wait(waiting, _WAIT_S, FIRST_COMPLETED)
    ready: list[Sequence] = []
    for member in members:
        if member.text is None:
            ready.append(member)
        elif member.text.done():
            error = member.text.exception()
            if error is None:
                ready.append(member)
            else:
                assert isinstance(error, AegaeonError)  # a promise of `Compiler.compile`
                failed.append(SequenceFailed(member.handle, error))
    return ready
