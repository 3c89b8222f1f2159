"""Conversations to prompts, through the model's chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aegaeon.http.errors import ApiError
from aegaeon.http.messages import Message, ToolCall
from aegaeon.http.models import ServedModel
from aegaeon.http.tokenizing import encode

#: Arguments of `apply_chat_template` that are the gateway's to set.
_RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


def template_of(model: ServedModel, *, tools: bool) -> str:
    """The chat template for conversations with or without tools. Raises ApiError."""
    try:
        # What it depends on is only whether there are any.
        template = model.tokenizer.get_chat_template(tools=[{}] if tools else None)
    except ValueError as error:
        raise ApiError(
            f"model {model.name!r} has no chat template; use /v1/completions",
            code="no_chat_template",
            param="messages",
        ) from error
    return str(template)


def chat_prompt(
    model: ServedModel,
    messages: Sequence[Message],
    options: Mapping[str, Any],
    tools: Sequence[dict[str, Any]] = (),
) -> list[int]:
    """Token ids of a conversation. Raises ApiError with the template's own reason.

    To be called in a thread; `transformers` keeps compiled templates.
    """
    reserved = sorted(_RESERVED & options.keys())
    if reserved:
        raise ApiError(
            f"chat_template_kwargs.{reserved[0]}: is set by the gateway",
            code="invalid_value",
            param=f"chat_template_kwargs.{reserved[0]}",
        )
    template_of(model, tools=bool(tools))
    try:
        text = model.tokenizer.apply_chat_template(
            [_plain(message) for message in messages],
            tools=list(tools) or None,
            tokenize=False,
            add_generation_prompt=True,
            **options,
        )
    except Exception as error:  # whatever a template does with what it was given
        raise ApiError(
            f"the chat template of model {model.name!r} refuses the messages: {error}",
            code="chat_template_error",
            param="messages",
        ) from error
    # The template has written the special tokens itself.
    return encode(model.tokenizer, str(text), add_special_tokens=False)


def characters(messages: Sequence[Message]) -> int:
    """Size of a conversation."""
    return sum(len(message.text) for message in messages)


def _plain(message: Message) -> dict[str, Any]:
    """As templates take it."""
    # Hardly any template knows OpenAI's newer name of the system role.
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": message.text}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    if message.tool_calls:
        plain["tool_calls"] = [_plain_call(call) for call in message.tool_calls]
    return plain


def _plain_call(call: ToolCall) -> dict[str, Any]:
    """With its arguments as an object, which templates write in their own way."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = call.function.arguments
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
