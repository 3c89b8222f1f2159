"""Events that operators watch; enum numbers equal the contract's."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from aegaeon.errors import AegaeonError
from aegaeon_scheduler.core.links import Transport
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.values import TurnStage


class WorkerChange(enum.IntEnum):
    """What happened to a worker."""

    REGISTERED = 1
    CONNECTED = 2
    LOST = 3
    DRAINING = 4


class TurnChange(enum.IntEnum):
    """What happened to a turn."""

    QUEUED = 1
    STARTED = 2
    ENDED = 3


class RequestChange(enum.IntEnum):
    """What happened to a request."""

    ACCEPTED = 1
    FINISHED = 2
    CANCELLED = 3
    FAILED = 4
    RECOVERED = 5
    HANDED_OFF = 6
    STOLEN = 7


class PrefixPull(enum.IntEnum):
    """What KV that engines keep did to the choice of one; numbers equal the contract's."""

    NONE = 0
    #: It goes where more of its prompt is kept.
    FOLLOWED = 1
    #: Others keep more of its prompt, but are too busy.
    PASSED_OVER = 2


@dataclass(frozen=True, slots=True)
class WorkerChanged:
    """A worker registered, connected or was lost."""

    node_id: str
    worker_index: int
    epoch: int
    change: WorkerChange
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaChanged:
    """A replica changed its state."""

    model: str
    node_id: str
    state: ReplicaState
    active_requests: int
    error: AegaeonError | None


@dataclass(frozen=True, slots=True)
class TurnChanged:
    """A turn was queued, started or ended; planned against measured, in ns."""

    engine_id: str
    turn_id: int
    model: str
    change: TurnChange
    sequences: int
    quota_ns: int
    switch_time_ns: int = 0
    elapsed_ns: int = 0
    reason: str = ""
    stage: TurnStage = TurnStage.WHOLE
    expected_switch_ns: float = 0.0
    expected_step_ns: float = 0.0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class RequestChanged:
    """A request was accepted, moved, or ended."""

    sequence_id: int
    label: str
    model: str
    engine_id: str
    change: RequestChange
    tokens: int
    error: AegaeonError | None = None
    #: Why this engine, when it was chosen for the prompt; and what it was expected to keep of it.
    reason: str = ""
    pull: PrefixPull = PrefixPull.NONE
    expected_cached_tokens: int = 0
    #: What was found of it, as far as known.
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class KvMoved:
    """KV came to an engine, or did not: `tokens` of those asked for; measured in ns."""

    sequence_id: int
    model: str
    source_node_id: str
    engine_id: str
    transport: Transport
    tokens: int
    num_bytes: int
    time_ns: int
    interruptions: int = 0


Notice = WorkerChanged | ReplicaChanged | TurnChanged | RequestChanged | KvMoved
