"""How the tokens of a request are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aegaeon.constraint import Constraint


@dataclass(frozen=True)
class SamplingParams:
    """Fields as users of vLLM know them; the default, unlike there, is greedy.

    Checked by the scheduler when the request is served. The contract's ``SamplingParameters`` says
    in which order the parameters take effect.
    """

    #: 0 to 2; 0 takes the most probable token.
    temperature: float = 0.0
    #: Draw from so many most probable tokens; 0 from all.
    top_k: int = 0
    #: Draw from the most probable tokens that together have this probability: above 0, at most 1.
    top_p: float = 1.0
    #: Draw from tokens of at least this share of the highest probability: 0 to 1.
    min_p: float = 0.0
    #: Subtracted from the logits of tokens that were generated; -2 to 2.
    presence_penalty: float = 0.0
    #: The same, times how often they were; -2 to 2.
    frequency_penalty: float = 0.0
    #: Divides positive and multiplies negative logits of tokens of prompt and output; 0.01 to 100.
    repetition_penalty: float = 1.0
    #: Added to the logits of these ids; each -100 to 100, at most 1,024 of them.
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    #: The same seed gives the same tokens, whatever else is served; any signed 64-bit number. None
    #: draws one.
    seed: int | None = None
    #: Fills in `StepOutput.logprob`, and `StepOutput.top_logprobs` with so many most probable
    #: tokens: 0 to 20. None leaves both None.
    logprobs: int | None = None
    #: What the text of the answer must be; None is anything.
    constraint: Constraint | None = None
