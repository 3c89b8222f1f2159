"""Log-probabilities of a step in the contract's packed form."""

from __future__ import annotations

from aegaeon.v1 import inference_pb2
from aegaeon_worker.engine.events import StepBatch


def log_probabilities_to_pb(step: StepBatch) -> inference_pb2.LogProbabilities:
    """Of the step's tokens, where it has some."""
    entries = step.log_probabilities.values()
    return inference_pb2.LogProbabilities(
        indexes=step.log_probabilities,
        logprobs=[entry.logprob for entry in entries],
        top_counts=[len(entry.top_token_ids) for entry in entries],
        top_token_ids=[token for entry in entries for token in entry.top_token_ids],
        top_logprobs=[value for entry in entries for value in entry.top_logprobs],
    )


def prompt_scores_to_pb(step: StepBatch) -> inference_pb2.PromptLogProbabilities:
    """Of prompts, where it has some."""
    message = inference_pb2.PromptLogProbabilities()
    for piece in step.prompt_scores:
        message.owners.append(piece.handle)
        message.starts.append(piece.start)
        message.counts.append(len(piece.told.logprobs))
        message.logprobs.extend(piece.told.logprobs)
        message.top_counts.append(piece.told.top_count)
        message.top_token_ids.extend(piece.told.top_token_ids)
        message.top_logprobs.extend(piece.told.top_logprobs)
    return message
