"""Requests that workers of an older release do not understand."""

from __future__ import annotations

from aegaeon.capability import Capabilities, named
from aegaeon.errors import AegaeonError, ErrorReason, PreconditionError
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.state import State

#: Workers named in one error.
_NAMED = 8


def feature_missing(state: State, model: str, needs: Capabilities) -> AegaeonError | None:
    """What a request ends with that nobody can take, if that is because workers that are there do
    not know what it asks for. None where it is not, or one that does is only to be stopped."""
    engines = [
        engine
        for node, replica in state.replicas(model)
        if replica.state is ReplicaState.READY
        for engine in node.engines_with(model)
    ]
    lacking = [engine for engine in engines if not engine.knows(needs)]
    if not lacking or any(engine.draining and engine.knows(needs) for engine in engines):
        return None
    missing = named({one for e in lacking for one in needs - e.identity.capabilities})
    workers = ", ".join(engine.engine_id for engine in lacking[:_NAMED])
    more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    return PreconditionError(
        f"the request asks for what the workers {workers}{more} of model {model!r} do not know, "
        f"since they are of an older release: {missing}. They would answer as if it had not been "
        "asked for; upgrade them, or ask without",
        reason=ErrorReason.FEATURE_MISSING,
        metadata={"feature": missing, "workers": workers},
    )
