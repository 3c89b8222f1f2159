"""What the engine tells. See `WorkerService.Execute` for the promises and the order."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from aegaeon.errors import AegaeonError
from aegaeon_worker.engine.model_spec import ModelFacts, ModelSpec
from aegaeon_worker.kv.fetches import Fetched
from aegaeon_worker.kv.hand_offs import HandedOff
from aegaeon_worker.kv.imports import Imported
from aegaeon_worker.kv.prefix_use import PrefixUse, Reused
from aegaeon_worker.sampling.log_probabilities import TokenLogProbabilities
from aegaeon_worker.sampling.prompt_log_probabilities import ToldTokens


class FinishReason(enum.Enum):
    """Why a sequence ended; values are the contract's enum numbers."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3


class TurnEndReason(enum.Enum):
    """Why a turn ended; values are the contract's enum numbers."""

    COMPLETED = 1
    QUOTA = 2
    FAILED = 3


@dataclass(frozen=True)
class LoadedModel:
    """A model that can run."""

    spec: ModelSpec
    facts: ModelFacts


@dataclass(frozen=True)
class Ready:
    """First event after ``Attach``: the models that can run at once."""

    models: tuple[LoadedModel, ...]


@dataclass(frozen=True)
class LoadProgress:
    """Packing goes on."""

    model: str
    packed_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class ModelLoaded:
    """The model can run; ``reused`` if its packed file was found."""

    model: LoadedModel
    reused: bool
    load_time_ns: int


@dataclass(frozen=True)
class ModelFailed:
    """The model could not be loaded or unloaded."""

    model: str
    error: AegaeonError


@dataclass(frozen=True)
class ModelUnloaded:
    """The model's memory is free again."""

    model: str
    device_bytes: int


@dataclass(frozen=True)
class TurnStarted:
    """A turn's first step is next; times in nanoseconds, sizes in bytes."""

    turn_id: int
    switched: bool
    switch_time_ns: int
    weight_copy_ns: int
    weight_bytes: int
    kv_swap_ns: int
    kv_bytes: int


@dataclass(frozen=True)
class PromptScores:
    """Log-probabilities of a part of a sequence's prompt, from position ``start`` on."""

    handle: int
    start: int
    told: ToldTokens


@dataclass
class StepBatch:
    """One step; the three lists run in parallel, one entry per sequence that got a token or ended.

    ``turn_id`` is 0 for ends outside any turn. ``log_probabilities`` are of the entries whose
    sequences ask for them, by index; ``prompt_scores`` of prompts, ahead of the step's tokens.
    """

    turn_id: int
    handles: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reasons: list[FinishReason] = field(default_factory=list)
    step_time_ns: int = 0
    prefill_tokens: int = 0
    decode_sequences: int = 0
    context_tokens: int = 0
    log_probabilities: dict[int, TokenLogProbabilities] = field(default_factory=dict)
    prompt_scores: list[PromptScores] = field(default_factory=list)

    def add(
        self,
        handle: int,
        token_id: int,
        reason: FinishReason,
        log_probabilities: TokenLogProbabilities | None = None,
    ) -> None:
        """Append one entry."""
        if log_probabilities is not None:
            self.log_probabilities[len(self.handles)] = log_probabilities
        self.handles.append(handle)
        self.token_ids.append(token_id)
        self.finish_reasons.append(reason)


@dataclass(frozen=True)
class TurnEnded:
    """A turn is over."""

    turn_id: int
    reason: TurnEndReason
    elapsed_ns: int
    steps: int
    recomputed_sequences: int


@dataclass(frozen=True)
class SequenceFailed:
    """One sequence failed and is forgotten."""

    handle: int
    error: AegaeonError


@dataclass(frozen=True)
class MemoryUsage:
    """Bytes in use, from the worker's own ledgers."""

    device_weight_bytes: int
    device_kv_bytes: int
    device_free_bytes: int
    host_kv_bytes: int
    weight_cache_bytes: int
    sequences: int
    prefix: PrefixUse
    """KV of common prefixes; what is kept of it is part of the free bytes."""
    device_graph_bytes: int = 0
    """What recorded decode steps hold, outside the pool."""


@dataclass(frozen=True)
class GroupLost:
    """Last event of a stream: the engine has lost one of its ranks, and everything with it."""

    error: AegaeonError


Event = (
    Ready
    | LoadProgress
    | ModelLoaded
    | ModelFailed
    | ModelUnloaded
    | TurnStarted
    | StepBatch
    | TurnEnded
    | SequenceFailed
    | HandedOff
    | Fetched
    | Imported
    | Reused
    | MemoryUsage
    | GroupLost
)
