"""One request on its way: private id, tokens, limits, and where its reader finds them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from aegaeon.capability import NO_CAPABILITIES, Capabilities
from aegaeon.errors import AegaeonError
from aegaeon_scheduler.core.backlog import Backlog
from aegaeon_scheduler.core.notices import PrefixPull
from aegaeon_scheduler.core.prefix_chain import PrefixChain
from aegaeon_scheduler.core.sampling import SamplingParameters
from aegaeon_scheduler.core.values import (
    COMMON,
    MIN_PRIORITY,
    FinishReason,
    KvPlace,
    PrefixSharing,
    Slo,
    StopConditions,
)


@dataclass(frozen=True, slots=True)
class KvSource:
    """KV that a prefill engine holds for a sequence that has gone on from it."""

    #: The engine's registration, and the handle that the sequence had there.
    epoch: int
    handle: int
    place: KvPlace


@dataclass(slots=True, eq=False)
class Sequence:
    """A request from acceptance to its end."""

    sequence_id: int
    label: str
    model: str
    prompt: Tokens[int]
    stop: StopConditions
    arrival_ns: int
    #: Tokens produced so far, the caller's own first; all of them survive the loss of a worker.
    #: Four bytes each, where a list needs 36.
    generated: array[int]
    #: How many of `generated` came with the request.
    inherited: int
    #: Prompt plus permitted new tokens, as counted against the queue limits.
    reserved_tokens: int
    #: Device pool bytes that weights and KV need at full length.
    pool_bytes: int
    #: Of those, weights.
    weight_bytes: int
    #: Device bytes of one token's KV.
    kv_token_bytes: int
    #: Token k, from 0 for the first that is not inherited, is due at arrival + TTFT + k * TPOT.
    slo: Slo
    #: Where its tokens and its end go.
    backlog: Backlog
    #: The reader's own number for it.
    stream_id: int = 0
    #: None takes the most probable token.
    sampling: SamplingParameters | None = None
    prefix: PrefixSharing = COMMON
    #: Of its caller's span.
    trace_parent: str = ""
    #: Most probable tokens to tell beside each token of the prompt; None tells nothing of it.
    prompt_logprobs: int | None = None
    #: Of how many of the prompt's first tokens the reader has been told, or need not be.
    told_tokens: int = 0
    #: Tokens of the prompt whose KV was there already.
    cached_tokens: int = 0
    #: What whoever computes it must know.
    needs: Capabilities = NO_CAPABILITIES
    #: Higher goes first; one more doubles the weight of lateness.
    priority: int = 0
    #: Names of its prompt's beginnings, where those count for the choice of its engine.
    chain: PrefixChain | None = None

    # Set when an engine is chosen for its prompt.
    #: Why that one, for those who watch.
    why: str = ""
    pull: PrefixPull = PrefixPull.NONE
    #: Tokens of the prompt whose KV the engine is expected to keep.
    expected_cached: int = 0
    #: The registration of the engine that keeps what it computes of its chain.
    prefix_epoch: int = 0

    # Set when routed, unset on loss.
    engine_id: str | None = None
    handle: int = 0
    #: How many of `generated` it had when its engine got it.
    assigned_tokens: int = 0
    #: The node where a prefill engine has taken it to its first token, to go on at a decode engine.
    #: Empty before that, and when what was computed is lost.
    prefilled_on: str = ""
    #: Until its KV has been copied in.
    source: KvSource | None = None
    #: The node from which its engine has its KV fetched, before which it has no turn.
    fetched_from: str = ""

    #: Engines in a row that were lost while they ran it, without a new token of it.
    losses: int = 0
    #: Taken out of its turn because its reader is behind.
    paused: bool = False
    #: Tokens in the backlog, those told of its prompt included.
    unread: int = 0
    finish: FinishReason = FinishReason.UNSPECIFIED
    error: AegaeonError | None = None

    @property
    def held_back(self) -> bool:
        """It is to be in no turn now."""
        return self.paused or bool(self.fetched_from)

    @property
    def ended(self) -> bool:
        """Nothing will be added any more."""
        return self.finish is not FinishReason.UNSPECIFIED or self.error is not None

    @property
    def made(self) -> int:
        """Tokens produced here."""
        return len(self.generated) - self.inherited

    @property
    def prompt_ahead(self) -> int:
        """Tokens of the prompt that are probably to be computed before a token is made here."""
        if len(self.generated) > self.inherited:
            return 0
        return len(self.prompt) - max(self.expected_cached, self.cached_tokens)

    @property
    def due_ns(self) -> int:
        """When the next token is due."""
        return self.arrival_ns + self.slo.ttft_ns + self.made * self.slo.tpot_ns

    @property
    def end_due_ns(self) -> int:
        """When the last of all permitted tokens is due."""
        permitted = max(1, self.stop.max_new_tokens - self.inherited)
        return self.arrival_ns + self.slo.ttft_ns + (permitted - 1) * self.slo.tpot_ns

    @property
    def weight(self) -> int:
        """What a second of lateness counts; a power of two."""
        return 1 << (self.priority - MIN_PRIORITY)

    @property
    def has_token_here(self) -> bool:
        """Its present engine has produced a token of it."""
        return len(self.generated) > self.assigned_tokens
