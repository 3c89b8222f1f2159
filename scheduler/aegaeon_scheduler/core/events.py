"""What happens to the cluster: the core's inputs."""

from __future__ import annotations

from collections.abc import Sequence as Numbers
from dataclasses import dataclass

from aegaeon.errors import AegaeonError
from aegaeon_scheduler.core.expectation import NodeExpectation
from aegaeon_scheduler.core.log_probabilities import (
    LogProbabilities,
    PromptLogProbabilities,
)
from aegaeon_scheduler.core.saved import SavedCluster
from aegaeon_scheduler.core.values import (
    KvPlace,
    ModelFacts,
    ModelSpec,
    PlacementPolicy,
    RoutingPolicy,
    TurnEnd,
    WorkerIdentity,
    WorkerMemory,
)


@dataclass(frozen=True, slots=True)
class WorkerRegistered:
    """A worker wants to serve; replaces an earlier one of the same node and index."""

    epoch: int
    identity: WorkerIdentity


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker's command stream is open; `models` can run at once."""

    epoch: int
    models: tuple[tuple[ModelSpec, ModelFacts], ...]


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The worker's stream broke, its lease ended, or it said goodbye."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoadProgressed:
    """A worker packs a model; bytes so far and in all."""

    epoch: int
    model: str
    packed_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """A model can run on a worker."""

    epoch: int
    spec: ModelSpec
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """A worker could not load or unload a model."""

    epoch: int
    model: str
    error: AegaeonError


@dataclass(frozen=True, slots=True)
class ModelUnloaded:
    """A worker gave a model's memory back."""

    epoch: int
    model: str


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A turn begins on a worker; measured times in ns, and bytes moved."""

    epoch: int
    turn_id: int
    switched: bool
    switch_time_ns: int
    weight_bytes: int
    kv_swap_ns: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """One engine step: parallel arrays, one entry per sequence that got a token or ended."""

    epoch: int
    turn_id: int
    handles: Numbers[int]
    token_ids: Numbers[int]
    finish_reasons: Numbers[int]
    step_time_ns: int
    prefill_tokens: int
    decode_sequences: int
    context_tokens: int
    #: Of the tokens whose sequences ask for them; None when there are none.
    log_probabilities: LogProbabilities | None = None
    #: Of prompts whose sequences ask for them; None when there are none.
    prompt_log_probabilities: PromptLogProbabilities | None = None


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A turn is over; `elapsed_ns` from its first step's start to its last one's end."""

    epoch: int
    turn_id: int
    reason: TurnEnd
    elapsed_ns: int
    steps: int


@dataclass(frozen=True, slots=True)
class SequenceFailed:
    """One sequence failed on a worker, which has forgotten it."""

    epoch: int
    handle: int
    error: AegaeonError


@dataclass(frozen=True, slots=True)
class SequenceHandedOff:
    """A sequence has its first token and left the worker, which holds its KV if there is any."""

    epoch: int
    handle: int
    place: KvPlace
    copy_time_ns: int = 0


@dataclass(frozen=True, slots=True)
class SequenceImported:
    """KV of another worker was copied in; 0 tokens: it was gone, and is computed again."""

    epoch: int
    handle: int
    imported_tokens: int
    num_bytes: int = 0
    copy_time_ns: int = 0


@dataclass(frozen=True, slots=True)
class SequenceFetched:
    """KV of another node is in this one's slabs, of so many tokens; 0: it did not come.

    KV that was offered by an engine of the node is on the device, or in the slabs if there is a
    refusal.
    """

    epoch: int
    handle: int
    fetched_tokens: int
    num_bytes: int = 0
    transfer_time_ns: int = 0
    interruptions: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class SequenceReused:
    """A sequence goes on with KV that others computed: so many of its first tokens in all."""

    epoch: int
    handle: int
    reused_tokens: int


@dataclass(frozen=True, slots=True)
class MemoryReported:
    """A worker's ledgers."""

    epoch: int
    memory: WorkerMemory


@dataclass(frozen=True, slots=True)
class ModelInspected:
    """Answer to `InspectModel`: facts, or the reason why there are none."""

    operation_id: int
    facts: ModelFacts | None
    error: AegaeonError | None


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A request is to end; `error` is set when something other than its caller ends it."""

    sequence_id: int
    error: AegaeonError | None = None


@dataclass(frozen=True, slots=True)
class ReaderCaughtUp:
    """Everything that was taken from a paused request's buffer has been written."""

    sequence_id: int


@dataclass(frozen=True, slots=True)
class DeployRequested:
    """Make a model READY on at least `replica_count` nodes, or on exactly `node_ids`."""

    operation_id: int
    spec: ModelSpec
    replica_count: int
    node_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UndeployRequested:
    """Drain and remove a model from `node_ids`; empty means everywhere."""

    operation_id: int
    name: str
    node_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopologyApplied:
    """Only these nodes take replicas, and these policies choose."""

    nodes: tuple[NodeExpectation, ...]
    placement: PlacementPolicy
    routing: RoutingPolicy
    #: See `CoreConfig`.
    stealing_min_batch_gap: int = 0


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Engines are to be stopped; with ``resume``, they are not any more."""

    epochs: tuple[int, ...]
    resume: bool = False


@dataclass(frozen=True, slots=True)
class ClusterRestored:
    """The first event of all, if there is one: what an earlier scheduler knew."""

    known: SavedCluster


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: something is due."""


Event = (
    WorkerRegistered
    | WorkerReady
    | WorkerLost
    | LoadProgressed
    | ModelLoaded
    | ModelFailed
    | ModelUnloaded
    | TurnStarted
    | StepDone
    | TurnEnded
    | SequenceFailed
    | SequenceHandedOff
    | SequenceFetched
    | SequenceImported
    | SequenceReused
    | MemoryReported
    | ModelInspected
    | CancelRequested
    | ReaderCaughtUp
    | DeployRequested
    | UndeployRequested
    | TopologyApplied
    | DrainRequested
    | ClusterRestored
    | Tick
)
