"""One generation that a client asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon.model_spec import DEFAULT_TPOT_SLO_S, DEFAULT_TTFT_SLO_S, ModelSpec
from aegaeon.sampling import SamplingParams


@dataclass(frozen=True)
class Request:
    """Prompt token ids in, up to ``decode_tokens`` token ids out.

    Apply a chat template before tokenizing chat messages. Checked when it is served: a bad request
    gets an InvalidRequestError in its own place and harms no other.
    """

    #: A deployed model, by spec or name.
    model: ModelSpec | str
    #: Seconds; what `LLMService.replay` waits for. `serve` sends at once.
    arrival_time: float
    #: The caller's label in logs and snapshots; need not be unique.
    request_id: int | str
    prompt_token_ids: Sequence[int]
    #: New tokens at most; the context limit applies besides. None goes on as far as the context, or
    #: the memory of the largest device, has room.
    decode_tokens: int | None
    #: Ids that end the output; empty means those that the model's own files name.
    eos_token_ids: Sequence[int] = ()
    #: Further ids that end the output, also under ``ignore_eos``.
    stop_token_ids: Sequence[int] = ()
    #: No end before this many new tokens.
    min_tokens: int = 0
    #: Context limit in tokens, prompt included; None means the model's.
    max_model_len: int | None = None
    #: Disables every end-of-sequence id, not ``stop_token_ids``.
    ignore_eos: bool = False
    #: Ends the request with RequestTimeoutError after this many seconds; None means never.
    timeout_s: float | None = None
    #: From -8 to 8; higher goes first, and one more doubles what a second of lateness counts.
    priority: int = 0
    #: Objectives that replace the model's: seconds to the first token, seconds per further token.
    #: They decide what goes first; a late token still comes. None means the model's.
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    #: Uses KV that requests with the same beginning have left, and leaves its own for others.
    prefix_caching: bool = True
    #: Requests share KV with those of the same salt alone: give each tenant its own where the time
    #: to the first token must not tell what others have asked. At most 256 bytes.
    cache_salt: str = ""
    #: W3C ``traceparent`` of the caller's span, for traces, see docs/metrics.md; empty: none.
    trace_parent: str = ""
    #: How tokens are chosen; None takes the most probable ones.
    sampling: SamplingParams | None = None
    #: Fills in `StepOutput.prompt_logprobs` of the first token: log-probabilities of the prompt's
    #: own tokens, and of so many most probable ones beside each, 0 to 20. The whole prompt is then
    #: computed; with ``decode_tokens=1`` that is all that is done. None asks for none.
    prompt_logprobs: int | None = None

    @property
    def objectives_s(self) -> tuple[float, float]:
        """TTFT and TPOT in seconds: its own, else its spec's, else the defaults."""
        spec = self.model if isinstance(self.model, ModelSpec) else None
        return (
            self.ttft_slo_s or (spec and spec.ttft_slo_s) or DEFAULT_TTFT_SLO_S,
            self.tpot_slo_s or (spec and spec.tpot_slo_s) or DEFAULT_TPOT_SLO_S,
        )

    @property
    def model_name(self) -> str:
        """Name of the model."""
        return self.model.name if isinstance(self.model, ModelSpec) else self.model
