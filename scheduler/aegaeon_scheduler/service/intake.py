"""Requests as the core takes them, with what is too long for its one thread checked beside it."""

from __future__ import annotations

import asyncio

from aegaeon.grammars import check_constraint
from aegaeon.v1 import inference_pb2
from aegaeon_scheduler.core.values import GenerationRequest
from aegaeon_scheduler.service.convert import generation_request


async def checked_request(
    message: inference_pb2.GenerateRequest, timeout_ns: int = 0, stream_id: int = 0
) -> GenerationRequest:
    """A request whose constraint can be compiled. Raises AegaeonError."""
    request = generation_request(message, timeout_ns, stream_id)
    if request.sampling is not None and request.sampling.constraint is not None:
        await asyncio.to_thread(check_constraint, request.sampling.constraint)
    return request
