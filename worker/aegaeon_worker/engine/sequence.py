"""One sequence on the engine."""

from __future__ import annotations

from aegaeon_worker.engine.commands import SequenceSpec
from aegaeon_worker.engine.events import FinishReason


class Sequence:
    """Tokens of a request and how far its KV has come.

    ``tokens`` holds the prompt and everything generated; ``num_computed`` of them have their KV in
    memory. A sequence that lost its KV is the same sequence with ``num_computed`` back at 0: it is
    prefilled again, tokens produced so far included, so its output cannot change.
    """

    __slots__ = ("handle", "model", "num_computed", "num_prompt", "stop", "tokens")

    def __init__(self, spec: SequenceSpec) -> None:
        self.handle = spec.handle
        self.model = spec.model
        self.stop = spec.stop
        self.num_prompt = len(spec.prompt)
        self.tokens = spec.prompt + spec.generated
        self.num_computed = 0

    @property
    def num_generated(self) -> int:
        """New tokens so far, those produced elsewhere included."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens whose KV is still to be computed: 1 while decoding, more while prefilling."""
        return len(self.tokens) - self.num_computed

    @property
    def may_stop(self) -> bool:
        """The next token may be one that ends the sequence: the minimum has been reached."""
        return self.num_generated >= self.stop.min_new_tokens

    def append(self, token_id: int) -> FinishReason:
        """Take the next token and say whether the sequence ends with it."""
        self.tokens.append(token_id)
        if token_id in self.stop.stop_ids:
            return FinishReason.STOP
        if (
            self.num_generated >= self.stop.max_new_tokens
            or len(self.tokens) >= self.stop.max_model_len
        ):
            return FinishReason.LENGTH
        return FinishReason.NONE
