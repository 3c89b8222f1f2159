"""Sampling parameters as a contract message; their bounds are the scheduler's to check."""

from __future__ import annotations

from aegaeon.client.fields import integer, invalid, number
from aegaeon.constraint import Constraint
from aegaeon.rpc.constraints import constraint_message
from aegaeon.sampling import SamplingParams
from aegaeon.v1 import inference_pb2


def to_sampling(params: SamplingParams | None) -> inference_pb2.SamplingParameters | None:
    """Convert. Raises InvalidRequestError for what the message cannot hold."""
    if params is None:
        return None
    if not isinstance(params, SamplingParams):
        raise invalid("sampling", params, "expected SamplingParams, or None")
    try:
        bias = dict(params.logit_bias)
    except (TypeError, ValueError):
        raise invalid(
            "sampling.logit_bias", params.logit_bias, "expected ids with biases"
        ) from None
    message = inference_pb2.SamplingParameters(
        temperature=number("sampling.temperature", params.temperature),
        top_k=integer("sampling.top_k", params.top_k, 0),
        top_p=number("sampling.top_p", params.top_p),
        min_p=number("sampling.min_p", params.min_p),
        presence_penalty=number("sampling.presence_penalty", params.presence_penalty),
        frequency_penalty=number("sampling.frequency_penalty", params.frequency_penalty),
        repetition_penalty=number("sampling.repetition_penalty", params.repetition_penalty),
        logit_bias={
            integer("sampling.logit_bias", token, 0): number(f"sampling.logit_bias[{token}]", value)
            for token, value in bias.items()
        },
    )
    if params.seed is not None:
        message.seed = integer("sampling.seed", params.seed, -(2**63), 2**63 - 1)
    if params.logprobs is not None:
        message.logprobs = integer("sampling.logprobs", params.logprobs, 0)
    if params.constraint is not None:
        if not isinstance(params.constraint, Constraint):
            raise invalid(
                "sampling.constraint", params.constraint, "expected a Constraint, or None"
            )
        message.constraint.CopyFrom(constraint_message(params.constraint))
    return message
