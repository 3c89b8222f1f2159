"""What the engine is told. See `WorkerService.Execute` for the promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aegaeon_worker.engine.model_spec import ModelSpec
from aegaeon_worker.kv.arrival import Arrival
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.peers.lender import LenderGone, PullAnswered
from aegaeon_worker.peers.lending import SaveOffer
from aegaeon_worker.sampling.parameters import SamplingParameters

if TYPE_CHECKING:
    from aegaeon_worker.engine.events import Event


@dataclass(frozen=True)
class StopConditions:
    """When a sequence ends; every default is already filled in.

    ``max_new_tokens`` and ``min_new_tokens`` count tokens produced elsewhere too; ``stop_ids`` is
    the union of the end-of-sequence ids in force and the caller's own; ``max_model_len`` is in
    tokens, the prompt included.
    """

    max_new_tokens: int
    min_new_tokens: int
    stop_ids: frozenset[int]
    max_model_len: int


@dataclass(frozen=True)
class SequenceSpec:
    """A sequence to run: ``tokens`` are the prompt and what was generated elsewhere.

    ``kv`` is where another worker left the KV of the first of them. Without ``sampling`` the best
    token is taken. With ``prefix_caching`` it may share KV with sequences of the same
    ``cache_salt`` that begin with the same tokens. ``label`` is the caller's, for the log, and
    ``trace_parent`` of the caller's span.
    ``tpot_ns`` is the time per further token that it was promised; 0 is not known.
    With ``prompt_logprobs`` it tells the log-probabilities of its prompt's tokens, and of so many
    most probable ones beside each, except of the first ``told_prompt_tokens``.
    """

    handle: int
    model: str
    prompt: list[int]
    generated: list[int]
    stop: StopConditions
    kv: KvPlace | None = None
    sampling: SamplingParameters | None = None
    prefix_caching: bool = True
    cache_salt: str = ""
    label: str = ""
    trace_parent: str = ""
    tpot_ns: int = 0
    prompt_logprobs: int | None = None
    told_prompt_tokens: int = 0


@dataclass(frozen=True)
class LoadModel:
    """Pack a model into the host cache, or find it there."""

    spec: ModelSpec


@dataclass(frozen=True)
class UnloadModel:
    """Give a model's memory back; refused while it has sequences."""

    model: str


@dataclass(frozen=True)
class AddSequences:
    """Make sequences known."""

    sequences: list[SequenceSpec]


@dataclass(frozen=True)
class CancelSequences:
    """End sequences at the next token boundary; unknown ones are ignored."""

    handles: list[int]


@dataclass(frozen=True)
class ReleaseSequences:
    """Free what sequences that were handed off have left; unknown ones are ignored."""

    handles: list[int]


@dataclass(frozen=True)
class QueueTurn:
    """Queue a turn; ``quota_ns`` of 0 lasts until no member is left.

    If it ``hands_off``, a member leaves with its first new token, to go on at another worker, which
    finds its KV ``on_device`` if that is possible, and else in the slabs.
    """

    turn_id: int
    model: str
    handles: list[int]
    quota_ns: int
    prefetch_model: str | None = None
    hands_off: bool = False
    on_device: bool = False


@dataclass(frozen=True)
class JoinTurn:
    """Add members to a queued or running turn; ignored when it has ended."""

    turn_id: int
    handles: list[int]


@dataclass(frozen=True)
class LeaveTurn:
    """Take members out of a turn without ending them."""

    turn_id: int
    handles: list[int]


@dataclass(frozen=True)
class LimitTurn:
    """Change a turn's quota; ignored when it has ended."""

    turn_id: int
    quota_ns: int


@dataclass(frozen=True)
class Attach:
    """Begin a command stream: forget every sequence and turn of the one before without a word,
    keep the models, and send every later event to ``publish``, the first being ``Ready``.

    ``publish`` runs on the engine's thread and must not block. None discards events: nobody
    listens. An event can therefore never reach a scheduler that did not cause it.
    """

    publish: Callable[[Event], None] | None


@dataclass(frozen=True)
class FetchEnded:
    """KV from another node has come, or comes no further; told by who carried it.

    ``transfer_ns`` since it was begun, with so many ``interruptions``.
    """

    arrival: Arrival
    transfer_ns: int
    interruptions: int


Command = (
    LoadModel
    | UnloadModel
    | AddSequences
    | CancelSequences
    | ReleaseSequences
    | QueueTurn
    | JoinTurn
    | LeaveTurn
    | LimitTurn
    | FetchEnded
    | PullAnswered
    | LenderGone
    | SaveOffer
    | Attach
)
