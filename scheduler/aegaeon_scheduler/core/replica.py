"""A replica: a model on a node, and the life it may have."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from aegaeon.errors import AegaeonError


class ReplicaState(enum.IntEnum):
    """Life of a replica; numbers equal the contract's."""

    ABSENT = 1
    LOADING = 2
    READY = 3
    DRAINING = 4
    FAILED = 5


#: FAILED may be retried or given up; a loss of its node takes a READY replica to FAILED and a
#: DRAINING one to ABSENT, since its memory went with the worker.
_NEXT: dict[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.ABSENT: frozenset({ReplicaState.LOADING}),
    ReplicaState.LOADING: frozenset({ReplicaState.READY, ReplicaState.FAILED}),
    ReplicaState.READY: frozenset({ReplicaState.DRAINING, ReplicaState.FAILED}),
    ReplicaState.DRAINING: frozenset({ReplicaState.ABSENT, ReplicaState.FAILED}),
    ReplicaState.FAILED: frozenset({ReplicaState.LOADING, ReplicaState.ABSENT}),
}


class IllegalTransitionError(RuntimeError):
    """A bug in the core: a replica was asked to go where its life cannot lead."""


@dataclass(slots=True, eq=False)
class Replica:
    """A model on a node."""

    model: str
    node_id: str
    state: ReplicaState = ReplicaState.ABSENT
    #: Requests routed to it that have not ended.
    active_requests: int = 0
    #: Why it is FAILED.
    error: AegaeonError | None = None
    #: When a request was last routed to it, in ns; idle replicas leave in this order.
    last_used_ns: int = 0
    #: FAILED because its node was lost: loads again by itself when a worker comes back.
    reload: bool = False
    #: Since when a replica that was READY is not any more through no wish of anybody, in ns; -1
    #: otherwise.
    lost_ns: int = -1
    #: Workers in a row that were lost while they loaded it.
    load_losses: int = 0

    def move(self, state: ReplicaState, error: AegaeonError | None = None) -> None:
        """Go to ``state``; raises `IllegalTransitionError` where the lifecycle has no such step."""
        if state not in _NEXT[self.state]:
            raise IllegalTransitionError(
                f"replica {self.model} on {self.node_id}: {self.state.name} -> {state.name}"
            )
        self.state = state
        self.error = error
        self.reload = False
        if state is ReplicaState.READY:
            self.lost_ns, self.load_losses = -1, 0
