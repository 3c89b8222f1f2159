"""A chat's body, read: its model, its prompt, and how its answers are made and shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon.http.chat import characters, chat_prompt
from aegaeon.http.errors import ApiError
from aegaeon.http.gateway import Gateway
from aegaeon.http.generation import Form
from aegaeon.http.models import ServedModel
from aegaeon.http.schemas import ChatBody
from aegaeon.http.tools.plan import ChatPlan, plan_chat
from aegaeon.http.truncation import truncated


@dataclass(frozen=True)
class ChatRequest:
    """All that generating needs to know."""

    model: ServedModel
    prompt: Sequence[int]
    plan: ChatPlan
    form: Form
    #: Tokens that were taken off the prompt.
    cut: int


async def read_chat(gateway: Gateway, body: ChatBody) -> ChatRequest:
    """Read a body. Raises ApiError, AegaeonError."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise ApiError(
            "max_completion_tokens: max_tokens is its older name; give one of them",
            code="invalid_value",
            param="max_completion_tokens",
        )
    model = await gateway.models.get(body.model)
    plan = await gateway.pool.run(0, plan_chat, model, body)
    size, options = characters(body.messages), body.chat_template_kwargs or {}
    whole = await gateway.pool.run(size, chat_prompt, model, body.messages, options, plan.tools)
    max_tokens = body.max_completion_tokens or body.max_tokens
    prompt = truncated(body, model, whole, max_tokens)
    form = Form(max_tokens, plan.constraint, shown=plan.shown)
    return ChatRequest(model, prompt, plan, form, len(whole) - len(prompt))
