"""How a request wants its tokens chosen, and the bounds of that."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon.constraint import Constraint
from aegaeon_scheduler.core.refusals import check_vocabulary, invalid_field

MAX_BIASED_TOKENS = 1024
MAX_LOGPROBS = 20
_MAX_BIAS = 100.0


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """See the contract's message of this name; defaults are filled in.

    ``logit_bias`` holds pairs of id and bias. ``seed`` is there whenever something may be drawn, so
    that a request that moves to another engine goes on with the same tokens.
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
    #: Checked before it comes here: compiling it takes more than a policy's time.
    constraint: Constraint | None = None


def check_logprobs(field: str, count: int | None) -> None:
    """Raise the error that names a number of most probable tokens that is too large."""
    if count is not None and count > MAX_LOGPROBS:
        raise invalid_field(field, count, f"0 to {MAX_LOGPROBS}")


def check_sampling(sampling: SamplingParameters, vocab_size: int) -> None:
    """Raise the error that names a value out of its bounds; one that is no number is."""
    for field, low, high in (
        ("temperature", 0.0, 2.0),
        ("min_p", 0.0, 1.0),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
        ("repetition_penalty", 0.01, 100.0),
    ):
        value = getattr(sampling, field)
        if not low <= value <= high:
            raise invalid_field(f"sampling.{field}", value, f"{low:g} to {high:g}")
    if not 0.0 < sampling.top_p <= 1.0:
        raise invalid_field("sampling.top_p", sampling.top_p, "above 0 and at most 1")
    check_logprobs("sampling.logprobs", sampling.logprobs)
    bias = sampling.logit_bias
    if len(bias) > MAX_BIASED_TOKENS:
        raise invalid_field(
            "sampling.logit_bias", f"{len(bias)} ids", f"at most {MAX_BIASED_TOKENS} ids"
        )
    check_vocabulary((token for token, _ in bias), vocab_size, "sampling.logit_bias")
    for token, value in bias:
        if not -_MAX_BIAS <= value <= _MAX_BIAS:
            raise invalid_field(f"sampling.logit_bias[{token}]", value, "-100 to 100")
