"""Log-probabilities between the contract and the core."""

from __future__ import annotations

from aegaeon.v1 import inference_pb2, worker_pb2
from aegaeon_scheduler.core.backlog import Parcel
from aegaeon_scheduler.core.log_probabilities import LogProbabilities


def step_log_probabilities(step: worker_pb2.StepBatch) -> LogProbabilities | None:
    """What a step tells of its tokens, in the message's own arrays; None when it tells nothing."""
    if not step.HasField("log_probabilities"):
        return None
    told = step.log_probabilities
    return LogProbabilities(
        told.indexes, told.logprobs, told.top_counts, told.top_token_ids, told.top_logprobs
    )


def parcel_log_probabilities(parcel: Parcel) -> inference_pb2.LogProbabilities | None:
    """What is told of a parcel's tokens."""
    told = parcel.log_probabilities
    if told is None:
        return None
    return inference_pb2.LogProbabilities(
        indexes=told.indexes,
        logprobs=told.logprobs,
        top_counts=told.top_counts,
        top_token_ids=told.top_token_ids,
        top_logprobs=told.top_logprobs,
    )
