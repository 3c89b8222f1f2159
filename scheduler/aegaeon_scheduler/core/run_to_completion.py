"""Turns that are never cut short: request-level scaling, to compare with."""

from __future__ import annotations

from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.turn_writer import DEPTH
from aegaeon_scheduler.core.turns import Plan, longest_waiting


class RunToCompletion:
    """A model keeps an engine until its requests have finished; arrivals join its batch.

    The longest waiting model is next, and its weights are fetched meanwhile.
    """

    def plan(self, engine: Engine, now_ns: int) -> Plan:
        """See `TurnPolicy`."""
        order = longest_waiting(engine)
        quotas = dict.fromkeys([turn.model for turn in engine.turns] + order, 0)
        following = order[DEPTH - len(engine.turns) :]
        return Plan(order, quotas, "longest waiting", following[0] if following else "")
