"""A body of the Responses endpoint as one of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from aegaeon.http.errors import from_validation, unsupported
from aegaeon.http.formats import JsonObjectFormat
from aegaeon.http.responses.schemas import (
    FlatAllowedTools,
    FlatChoice,
    InputCall,
    InputMessage,
    InputResult,
    ResponsesBody,
    SchemaFormat,
)
from aegaeon.http.schemas import ChatBody

#: Values that ask for what happens anyway, besides null.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "include": ([],),
    "previous_response_id": (),
    "reasoning": ({},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "truncation": ("disabled",),
}


def to_chat(body: ResponsesBody) -> ChatBody:
    """The chat that it asks for. Raises ApiError for what is not done; nothing is stored."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            raise unsupported(name, "not supported by this release; leave it out")
    chat: dict[str, Any] = {
        "model": body.model,
        "messages": _messages(body),
        "max_completion_tokens": body.max_output_tokens,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
        "response_format": _format(body),
        "parallel_tool_calls": body.parallel_tool_calls,
    }
    if body.tools is not None:
        chat["tools"] = [
            {"type": "function", "function": tool.model_dump(exclude={"type"})}
            for tool in body.tools
        ]
    chat["tool_choice"] = _choice(body)
    try:
        return ChatBody.model_validate(chat)
    except ValidationError as error:
        raise from_validation(error) from None


def _choice(body: ResponsesBody) -> Any:
    choice = body.tool_choice
    if isinstance(choice, FlatChoice):
        return _named(choice)
    if isinstance(choice, FlatAllowedTools):
        allowed = {"mode": choice.mode, "tools": [_named(tool) for tool in choice.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _named(tool: FlatChoice) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.name}}


def _messages(body: ResponsesBody) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    return messages + _conversation(body.input)


def _conversation(items: Sequence[InputMessage | InputCall | InputResult]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, InputMessage):
            content = item.content
            text = content if isinstance(content, str) else "".join(part.text for part in content)
            messages.append({"role": item.role, "content": text})
        elif isinstance(item, InputResult):
            messages.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
        else:
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            # What a model says and calls at once is one message of a chat.
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
    return messages


def _format(body: ResponsesBody) -> dict[str, Any] | None:
    form = body.text.format if body.text is not None else None
    if isinstance(form, SchemaFormat):
        schema = form.model_dump(by_alias=True, exclude={"type"})
        return {"type": "json_schema", "json_schema": schema}
    return {"type": "json_object"} if isinstance(form, JsonObjectFormat) else None
