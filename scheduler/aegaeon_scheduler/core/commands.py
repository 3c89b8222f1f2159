"""What the core wants done: its outputs, in order."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from aegaeon.errors import AegaeonError
from aegaeon_scheduler.core.backlog import Backlog
from aegaeon_scheduler.core.notices import Notice
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.sampling import SamplingParameters
from aegaeon_scheduler.core.values import (
    COMMON,
    KvPlace,
    ModelSpec,
    PrefixSharing,
    StopConditions,
    TurnStage,
)


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Pack a model into the host cache, or find it there."""

    epoch: int
    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Give a model's memory back; its sequences have ended."""

    epoch: int
    model: str


@dataclass(frozen=True, slots=True)
class AddSequence:
    """Make a sequence known to a worker; `generated` is a copy, `prompt` is not."""

    epoch: int
    handle: int
    model: str
    prompt: Tokens[int]
    generated: tuple[int, ...]
    stop: StopConditions
    kv: KvPlace | None = None
    sampling: SamplingParameters | None = None
    prefix: PrefixSharing = COMMON
    label: str = ""
    trace_parent: str = ""
    tpot_ns: int = 0
    prompt_logprobs: int | None = None
    told_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CancelSequences:
    """End sequences at the next token boundary."""

    epoch: int
    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseSequences:
    """Free the KV of sequences that have been handed off."""

    epoch: int
    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueueTurn:
    """Queue a turn behind those queued before; a quota of 0 ns means none."""

    epoch: int
    turn_id: int
    model: str
    handles: tuple[int, ...]
    quota_ns: int
    prefetch_model: str
    stage: TurnStage = TurnStage.WHOLE
    on_device: bool = False


@dataclass(frozen=True, slots=True)
class JoinTurn:
    """Add members to a queued or running turn."""

    epoch: int
    turn_id: int
    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeaveTurn:
    """Take members out of a turn without ending them."""

    epoch: int
    turn_id: int
    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LimitTurn:
    """Change a turn's quota; 0 ns means none."""

    epoch: int
    turn_id: int
    quota_ns: int


@dataclass(frozen=True, slots=True)
class FenceWorker:
    """Close the worker's stream for good: its registration is void."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class InspectModel:
    """Read a model's files on a worker; answered by `ModelInspected`."""

    epoch: int
    operation_id: int
    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class Deliver:
    """These backlogs have something to read, and had nothing before."""

    backlogs: list[Backlog]


@dataclass(frozen=True, slots=True)
class DeployProgressed:
    """Something changed on a node of a running deployment."""

    operation_id: int
    node_id: str
    state: ReplicaState
    packed_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class DeployFinished:
    """A deployment is over; `error` is set when nothing is ready."""

    operation_id: int
    ready_node_ids: tuple[str, ...]
    failed: tuple[tuple[str, AegaeonError], ...]
    evicted: tuple[tuple[str, str], ...]
    error: AegaeonError | None


@dataclass(frozen=True, slots=True)
class UndeployFinished:
    """An undeployment is over; `error` is set when there was no such model."""

    operation_id: int
    removed_node_ids: tuple[str, ...]
    failed: tuple[tuple[str, AegaeonError], ...]
    error: AegaeonError | None


@dataclass(frozen=True, slots=True)
class Publish:
    """Something that watchers of the cluster want to know."""

    notice: Notice


WorkerCommand = (
    LoadModel
    | UnloadModel
    | AddSequence
    | CancelSequences
    | ReleaseSequences
    | QueueTurn
    | JoinTurn
    | LeaveTurn
    | LimitTurn
)
Command = (
    WorkerCommand
    | FenceWorker
    | InspectModel
    | Deliver
    | DeployProgressed
    | DeployFinished
    | UndeployFinished
    | Publish
)
