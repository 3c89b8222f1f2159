"""One new token of a request."""

from __future__ import annotations

from typing import Literal, NamedTuple

FinishReason = Literal["stop", "length"]


class PromptLogprob(NamedTuple):
    """What the model gave to a token of the prompt, after those before it; natural logarithms."""

    logprob: float
    #: Of the most probable tokens there, the most probable first, by id.
    top_logprobs: dict[int, float]


class StepOutput(NamedTuple):
    """A token, when it was made, and whether it is the last.

    A named tuple, because there is one per token, and nothing else is made as fast.
    """

    new_token_id: int
    #: On the last token: "stop" (end-of-sequence or stop id, this token) or "length".
    finish_reason: FinishReason | None
    #: Worker time of the engine step that made it, in nanoseconds.
    step_time_ns: int
    #: When the scheduler received it, nanoseconds since the Unix epoch.
    received_unix_ns: int
    #: Natural logarithm of the probability that the model gave to it, whatever the sampling; None
    #: unless `SamplingParams.logprobs` asks for it.
    logprob: float | None = None
    #: The same of the most probable tokens there, the most probable first, by id.
    top_logprobs: dict[int, float] | None = None
    #: On the last token: tokens of the prompt whose KV was there already.
    cached_tokens: int = 0
    #: On the first token, if `Request.prompt_logprobs` asks for it: an entry per token of the
    #: prompt, None for its first one, which nothing stands before.
    prompt_logprobs: list[PromptLogprob | None] | None = None
