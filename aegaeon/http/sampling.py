"""How a body asks for tokens to be chosen."""

from __future__ import annotations

import re

from aegaeon.constraint import Constraint
from aegaeon.http.errors import ApiError
from aegaeon.http.schemas import ChatBody, CompletionBody, GenerationBody
from aegaeon.sampling import SamplingParams

_TOKEN_ID = re.compile(r"-?[0-9]{1,10}")
_SEEDS = 2**64


def sampling_of(
    body: GenerationBody, number: int, constraint: Constraint | None, *, scored: bool
) -> SamplingParams:
    """For the answer of this number, from 0, to one prompt; OpenAI's defaults where none is given.

    An answer that is to be ``scored`` has log-probabilities whether they are shown or not.

    Raises ApiError; bounds that depend on the model are the scheduler's to check.
    """
    logprobs = logprobs_of(body)
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(0, body.top_k or 0),
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias={_token_id(key): bias for key, bias in (body.logit_bias or {}).items()},
        seed=None if body.seed is None else _seed(body.seed, number),
        logprobs=0 if scored and logprobs is None else logprobs,
        constraint=constraint,
    )


def logprobs_of(body: GenerationBody) -> int | None:
    """How many most probable tokens are wanted beside each one; None for no log-probabilities."""
    if isinstance(body, ChatBody):
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(
                "top_logprobs: only with logprobs = true", code="invalid_value", param="logprobs"
            )
        return (body.top_logprobs or 0) if body.logprobs else None
    assert isinstance(body, CompletionBody)
    return body.logprobs


def prompt_logprobs_of(body: GenerationBody) -> int | None:
    """The same beside each token of the prompt."""
    echoed = body.logprobs if isinstance(body, CompletionBody) and body.echo else None
    wanted = [count for count in (echoed, body.prompt_logprobs) if count is not None]
    return max(wanted, default=None)


def _seed(seed: int, number: int) -> int:
    """Each answer has a seed of its own, within a signed 64-bit number."""
    return (seed + number + _SEEDS // 2) % _SEEDS - _SEEDS // 2


def _token_id(key: str) -> int:
    if not _TOKEN_ID.fullmatch(key):
        raise ApiError(
            f"logit_bias: {key[:40]!r} is no token id", code="invalid_value", param="logit_bias"
        )
    return int(key)
