"""Log-probabilities of a session's message: of tokens, and of prompts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from aegaeon.step_output import PromptLogprob, StepOutput
from aegaeon.v1 import inference_pb2


def steps_with_log_probabilities(
    response: inference_pb2.SessionResponse,
) -> Iterator[tuple[int, StepOutput]]:
    """Every token with the stream id that it belongs to; only some need have log-probabilities."""
    told = response.log_probabilities
    top = zip(told.top_token_ids, told.top_logprobs, strict=True)
    extras = {
        index: (logprob, dict(islice(top, top_count)))
        for index, logprob, top_count in zip(
            told.indexes, told.logprobs, told.top_counts, strict=True
        )
    }
    tokens = zip(count(), response.stream_ids, response.token_ids)
    for token_count, step_time_ns, received_unix_ns in zip(
        response.step_token_counts, response.step_times_ns, response.received_unix_ns, strict=True
    ):
        for index, stream_id, token in islice(tokens, token_count):
            extra = extras.get(index, (None, None))
            yield stream_id, StepOutput(token, None, step_time_ns, received_unix_ns, *extra)


def prompt_pieces(
    told: inference_pb2.PromptLogProbabilities,
) -> Iterator[tuple[int, int, list[PromptLogprob]]]:
    """Every piece: the stream id that it belongs to, the position of its first token in the prompt,
    and its entries."""
    top = zip(told.top_token_ids, told.top_logprobs, strict=True)
    logprobs = iter(told.logprobs)
    for owner, start, size, top_count in zip(
        told.owners, told.starts, told.counts, told.top_counts, strict=True
    ):
        entries = [
            PromptLogprob(logprob, dict(islice(top, top_count)))
            for logprob in islice(logprobs, size)
        ]
        yield owner, start, entries
