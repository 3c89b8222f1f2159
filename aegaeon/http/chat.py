"""Conversations to prompts, through the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aegaeon.http.errors import ApiError
from aegaeon.http.models import ServedModel
from aegaeon.http.schemas import Message
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


def chat_prompt(
    model: ServedModel, messages: Sequence[Message], options: Mapping[str, Any]
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
    if not model.tokenizer.chat_template:
        raise ApiError(
            f"model {model.name!r} has no chat template; use /v1/completions",
            code="no_chat_template",
            param="messages",
        )
    try:
        text = model.tokenizer.apply_chat_template(
            [_plain(message) for message in messages],
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
    return sum(len(_content(message)) for message in messages)


def _plain(message: Message) -> dict[str, str]:
    # Hardly any template knows OpenAI's newer name of the system role.
    role = "system" if message.role == "developer" else message.role
    plain = {"role": role, "content": _content(message)}
    return plain | ({"name": message.name} if message.name is not None else {})


def _content(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content)
