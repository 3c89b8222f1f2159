"""One request through a gateway, as a client sees it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from aegaeon.client.gateway import events
from aegaeon.errors import AegaeonError, RequestTimeoutError
from aegaeon.request import Request
from aegaeon.step_output import FinishReason, StepOutput


async def ask(client: httpx.AsyncClient, request: Request) -> list[StepOutput] | AegaeonError:
    """Its steps, with the times at which the client got them, or the error that ended it."""
    body: dict[str, Any] = {
        "model": request.model_name,
        "prompt": list(request.prompt_token_ids),
        "max_tokens": request.decode_tokens,
        "temperature": 0,
        "ignore_eos": request.ignore_eos,
        "return_token_ids": True,
    }
    steps: list[StepOutput] = []
    try:
        async with asyncio.timeout(request.timeout_s):
            async for chunk in events(client, "/v1/completions", body):
                now = time.time_ns()
                for choice in chunk["choices"]:
                    reason: FinishReason | None = choice["finish_reason"]
                    steps += [StepOutput(token, reason, 0, now) for token in choice["token_ids"]]
    except TimeoutError:
        return RequestTimeoutError(f"not answered within {request.timeout_s:g} s")
    except AegaeonError as error:
        return error
    return steps
