"""What the core asks of a scheduling policy."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

from aegaeon_scheduler.core.batch import Batch
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.outbox import Outbox
from aegaeon_scheduler.core.sequence import Sequence


class Planner(Protocol):
    """Chooses engines, and plans their turns. Same calls, same answers."""

    def choose(self, engines: Items[Engine], sequence: Sequence) -> Engine:
        """Who takes a sequence: one of ``engines``, which are at least one."""

    def replan(self, engine: Engine, now_ns: int, out: Outbox) -> None:
        """Bring a worker's turns up to date with what waits now."""

    def batches(self, engine: Engine) -> list[Batch]:
        """What an engine has to decode. None is empty, lest two engines rob each other."""

    def forget(self, engine: Engine) -> None:
        """An engine is gone, and nothing is on its books any more."""
