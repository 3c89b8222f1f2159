"""Sequences that would compute the same thing in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aegaeon_worker.engine.sequence import Sequence


def without_repetition(
    running: Iterable[Sequence], next_key: Callable[[int], bytes | None]
) -> list[Sequence]:
    """Leave out those whose next block an earlier one computes: they find it in the next step.

    So many answers to one prompt cost one prefill. ``next_key`` is ``MemoryManager.next_key``.
    """
    seen: set[bytes] = set()
    kept = []
    for sequence in running:
        key = next_key(sequence.handle)
        if key is None or key not in seen:
            kept.append(sequence)
        if key is not None:
            seen.add(key)
    return kept
