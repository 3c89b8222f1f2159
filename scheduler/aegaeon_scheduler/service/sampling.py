"""Sampling parameters between the contract and the core."""

from __future__ import annotations

import secrets

from aegaeon.rpc.constraints import constraint_message, constraint_of
from aegaeon.v1 import inference_pb2
from aegaeon_scheduler.core.sampling import SamplingParameters

_GREEDY = SamplingParameters()


def sampling_parameters(message: inference_pb2.GenerateRequest) -> SamplingParameters | None:
    """A request's parameters with their defaults; None where they only say what holds anyway.

    Where the caller gives no seed, one is drawn here, once for the life of the request.
    """
    if not message.HasField("sampling"):
        return None
    sampling = message.sampling
    parameters = SamplingParameters(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=(
            sampling.repetition_penalty if sampling.HasField("repetition_penalty") else 1.0
        ),
        logit_bias=tuple(sampling.logit_bias.items()),
        seed=_seed(sampling),
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        constraint=constraint_of(sampling),
    )
    return None if parameters == _GREEDY else parameters


def sampling_message(parameters: SamplingParameters) -> inference_pb2.SamplingParameters:
    """Back again, every field set."""
    constraint = parameters.constraint
    return inference_pb2.SamplingParameters(
        temperature=parameters.temperature,
        top_k=parameters.top_k,
        top_p=parameters.top_p,
        min_p=parameters.min_p,
        presence_penalty=parameters.presence_penalty,
        frequency_penalty=parameters.frequency_penalty,
        repetition_penalty=parameters.repetition_penalty,
        logit_bias=dict(parameters.logit_bias),
        seed=parameters.seed,
        logprobs=parameters.logprobs,
        constraint=None if constraint is None else constraint_message(constraint),
    )


def _seed(sampling: inference_pb2.SamplingParameters) -> int:
    if sampling.temperature == 0:
        return 0
    return sampling.seed if sampling.HasField("seed") else secrets.randbits(63)
