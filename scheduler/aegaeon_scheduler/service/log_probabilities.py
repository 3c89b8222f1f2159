"""Log-probabilities between the contract and the core."""

from __future__ import annotations

from aegaeon.v1 import inference_pb2, worker_pb2
from aegaeon_scheduler.core.backlog import Parcel
from aegaeon_scheduler.core.log_probabilities import LogProbabilities, PromptLogProbabilities


def step_log_probabilities(step: worker_pb2.StepBatch) -> LogProbabilities | None:
    """What a step tells of its tokens, in the message's own arrays; None when it tells nothing."""
    if not step.HasField("log_probabilities"):
        return None
    told = step.log_probabilities
    return LogProbabilities(
        told.indexes, told.logprobs, told.top_counts, told.top_token_ids, told.top_logprobs
    )


def prompt_log_probabilities(step: worker_pb2.StepBatch) -> PromptLogProbabilities | None:
    """What a step tells of prompts, in the message's own arrays; None when it tells nothing."""
    if not step.HasField("prompt_log_probabilities"):
        return None
    told = step.prompt_log_probabilities
    return PromptLogProbabilities(
        told.owners,
        told.starts,
        told.counts,
        told.logprobs,
        told.top_counts,
        told.top_token_ids,
        told.top_logprobs,
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


def parcel_prompts(parcel: Parcel, *, named: bool) -> inference_pb2.PromptLogProbabilities | None:
    """What a parcel tells of prompts, which are ``named`` where they are of several requests."""
    if not parcel.prompts:
        return None
    message = inference_pb2.PromptLogProbabilities()
    for piece in parcel.prompts:
        if named:
            message.owners.append(piece.owner.stream_id)
        message.starts.append(piece.start)
        message.counts.append(len(piece.logprobs))
        message.logprobs.extend(piece.logprobs)
        message.top_counts.append(piece.top_count)
        message.top_token_ids.extend(piece.top_token_ids)
        message.top_logprobs.extend(piece.top_logprobs)
    return message
