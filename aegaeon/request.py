"""One generation that a client asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon.model_spec import ModelSpec


@dataclass(frozen=True)
class Request:
    """Prompt token ids in, up to ``decode_tokens`` token ids out; decoding is greedy.

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
    #: New tokens at most; the context limit applies besides.
    decode_tokens: int
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

    @property
    def model_name(self) -> str:
        """Name of the model."""
        return self.model.name if isinstance(self.model, ModelSpec) else self.model
