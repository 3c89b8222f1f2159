"""How a sequence's tokens are chosen."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon.constraint import Constraint

#: Temperatures below it are greedy: what they would divide by leaves nothing but the best token.
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class SamplingParameters:
    """See the contract's message of this name; every default is filled in.

    ``logit_bias`` holds pairs of id and bias; ``seed`` is any 64-bit number.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None
    constraint: Constraint | None = None

    @property
    def is_greedy(self) -> bool:
        """The best token is taken, nothing is drawn."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def penalizes(self) -> bool:
        """Tokens that are there already change the logits."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )
