"""One sequence on the engine."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from aegaeon_worker.engine.commands import SequenceSpec
from aegaeon_worker.engine.events import FinishReason
from aegaeon_worker.sampling.token_counts import TokenCounts

if TYPE_CHECKING:
    from aegaeon_worker.grammar.text_state import TextState


class Sequence:
    """Tokens of a request and how far its KV has come.

    ``tokens`` holds the prompt and everything generated; ``num_computed`` of them have their KV in
    memory. A sequence that lost its KV is the same sequence with ``num_computed`` back at 0: it is
    prefilled again, tokens produced so far included, so its output cannot change.

    Steps may run ahead of what is known: ``num_under_way`` more tokens follow those in ``tokens``,
    chosen on the device but not seen here yet. Their KV may have been computed as well.
    """

    __slots__ = (
        "_counts", "handle", "label", "model", "num_computed", "num_prompt", "num_scored",
        "num_under_way", "prompt_logprobs", "sampling", "stop", "text", "tokens", "tpot_ns",
    )  # fmt: skip

    def __init__(self, spec: SequenceSpec, text: Future[TextState] | None = None) -> None:
        self.handle = spec.handle
        self.model = spec.model
        #: The caller's, for the log.
        self.label = spec.label
        self.stop = spec.stop
        #: Time per further token that it was promised, in ns; 0 is not known.
        self.tpot_ns = spec.tpot_ns
        #: None takes the best token.
        self.sampling = spec.sampling
        #: Where its text has to go, once that is compiled; None is anywhere. It cannot run before.
        self.text = text
        self.num_prompt = len(spec.prompt)
        self.tokens = spec.prompt + spec.generated
        self.num_computed = 0
        self.num_under_way = 0
        #: Most probable tokens to tell beside each token of the prompt; None tells nothing of it.
        self.prompt_logprobs = spec.prompt_logprobs
        #: Tokens of the prompt, from the first on, of which nothing is to be told any more. What is
        #: under way counts, since it is told even if the KV is lost meanwhile. The very first token
        #: has nothing to tell.
        self.num_scored = (
            self.num_prompt if spec.prompt_logprobs is None else max(1, spec.told_prompt_tokens)
        )
        self._counts: TokenCounts | None = None

    @property
    def num_tokens(self) -> int:
        """All tokens, those under way included."""
        return len(self.tokens) + self.num_under_way

    @property
    def num_generated(self) -> int:
        """New tokens so far, those produced elsewhere and those under way included."""
        return self.num_tokens - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens whose KV is still to be computed: 1 while decoding, more while prefilling."""
        return self.num_tokens - self.num_computed

    @property
    def may_stop(self) -> bool:
        """The next token may be one that ends the sequence: the minimum has been reached."""
        return self.num_generated >= self.stop.min_new_tokens

    @property
    def is_full(self) -> bool:
        """It has all tokens that it may have, known or under way."""
        stop = self.stop
        return self.num_generated >= stop.max_new_tokens or self.num_tokens >= stop.max_model_len

    @property
    def is_scored(self) -> bool:
        """Log-probabilities of tokens of its prompt are still to be told."""
        return self.num_scored < self.num_prompt

    @property
    def needs_tokens(self) -> bool:
        """Its next token depends on tokens that have to be known."""
        return self.num_under_way > 0 and self.text is not None

    def token_counts(self) -> TokenCounts:
        """Tokens so far, as penalties count them; those of the prompt only if one needs them."""
        if self._counts is None:
            whole = self.sampling is not None and self.sampling.repetition_penalty != 1.0
            self._counts = TokenCounts(self.tokens[: self.num_prompt] if whole else ())
        self._counts.update(self.tokens, self.num_prompt)
        return self._counts

    def append(self, token_id: int) -> FinishReason:
        """Take the next token, no longer under way, and say whether the sequence ends with it.

        Raises InvalidRequestError where its constraint cannot take it.
        """
        self.tokens.append(token_id)
        if token_id in self.stop.stop_ids:
            return FinishReason.STOP
        if self.text is not None and self.text.result().take(token_id):
            return FinishReason.STOP
        if self.is_full and not self.num_under_way:
            return FinishReason.LENGTH
        return FinishReason.NONE
