"""Requests that tests send."""

from __future__ import annotations

from collections.abc import Sequence

from aegaeon.v1 import inference_pb2


def generate_request(
    prompt: Sequence[int] = (1, 2, 3), count: int = 8, model: str = "m", **stop: object
) -> inference_pb2.GenerateRequest:
    """A request for ``count`` tokens."""
    return inference_pb2.GenerateRequest(
        model=model,
        prompt_token_ids=prompt,
        stop=inference_pb2.StopConditions(**{"max_new_tokens": count, **stop}),
    )


def submit(
    stream_id: int, request: inference_pb2.GenerateRequest, timeout_ns: int = 0
) -> inference_pb2.SessionRequest:
    """A session's message that opens a request."""
    return inference_pb2.SessionRequest(
        submit=inference_pb2.SessionSubmit(
            stream_id=stream_id, request=request, timeout_ns=timeout_ns
        )
    )
