"""Work on the device that is recorded once and then replayed, one recording per kind of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from aegaeon_worker.engine.execution import GraphRecorder

logger = logging.getLogger(__name__)

Kind = TypeVar("Kind", bound=Hashable)


class Recordings(Generic[Kind]):
    """The first work of a kind runs as it is, which prepares whatever its kernels need, the second
    one is recorded, and from then on it is replayed."""

    def __init__(self, recorder: GraphRecorder) -> None:
        self._recorder = recorder
        self._ready: set[Kind] = set()
        self._recorded: dict[Kind, Callable[[], None]] = {}

    @property
    def kinds(self) -> frozenset[Kind]:
        """What is replayed."""
        return frozenset(self._recorded)

    def of(self, kind: Kind) -> Callable[[], None]:
        """What is replayed for one of ``kinds``."""
        return self._recorded[kind]

    def run(self, kind: Kind, work: Callable[[], None], *, replays: bool = True) -> None:
        """Do ``work``, which is the same for all of a kind; as it is unless it ``replays``."""
        run = self._recorded.get(kind) if replays else None
        if run is None:
            run = work
            if replays and kind in self._ready:
                run = self._recorded[kind] = self._record(kind, work)
            self._ready.add(kind)
        run()

    def _record(self, kind: Kind, work: Callable[[], None]) -> Callable[[], None]:
        try:
            return self._recorder.record(work)
        except RuntimeError as error:
            # Slower, but right.
            logger.warning("a step of %s cannot be recorded: %s", kind, error)
            return work
