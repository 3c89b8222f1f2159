"""What OpenAI's responses to chats look like, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aegaeon.http.answers import Answer
from aegaeon.http.chat_request import ChatRequest
from aegaeon.http.generation import Delta, Output
from aegaeon.http.logprobs import chat_logprobs
from aegaeon.http.schemas import ChatBody
from aegaeon.http.tools.parser import CallParser, CallPart, parts_of
from aegaeon.step_output import FinishReason, StepOutput


class ChatAnswer(Answer):
    """Of POST /v1/chat/completions."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, body: ChatBody, chat: ChatRequest) -> None:
        super().__init__(body, chat.model, [chat.prompt], chat.cut)
        self._parsers = [chat.plan.parser() for _ in range(self._n)]

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._prompts[0])} if self._token_ids else {}

    def whole(self, outputs: Sequence[Output], made: int) -> dict[str, Any]:
        """See `Answer`; what is told of the prompt is that of the whole."""
        return super().whole(outputs, made) | self._told(0, outputs[0].prompt)

    def _openings(self) -> Iterator[dict[str, Any]]:
        for index in range(self._n):
            yield self._delta(index, {"role": "assistant", "content": ""}, None)

    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        parser = self._parsers[index]
        parts = parts_of(parser, output.text, ends=True)
        message: dict[str, Any] = {"role": "assistant", "content": parts.text, "refusal": None}
        if parts.calls:
            message["content"] = parts.text or None
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"}
                for call in _calls(parts.calls)
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": self._log(output.steps),
            "finish_reason": _reason(parser, output.finish_reason),
            **self._ids(output.steps),
        }

    def _part(self, index: int, delta: Delta) -> dict[str, Any] | None:
        parser = self._parsers[index]
        parts = parts_of(parser, delta.text, ends=delta.finish_reason is not None)
        content: dict[str, Any] = {"content": parts.text} if parts.text else {}
        if parts.calls:
            content["tool_calls"] = _calls(parts.calls)
        if not (content or delta.finish_reason or self._token_ids or self._logprobs):
            return None
        part = self._delta(index, content, _reason(parser, delta.finish_reason))
        return part | {"logprobs": self._log(delta.steps)} | self._ids(delta.steps)

    def _log(self, steps: Sequence[StepOutput]) -> dict[str, Any] | None:
        return chat_logprobs(self._vocabulary, steps) if self._logprobs else None

    @staticmethod
    def _delta(index: int, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


def _calls(parts: Sequence[CallPart]) -> list[dict[str, Any]]:
    """What is new of calls, an entry for each."""
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        call = calls.setdefault(part.index, {"index": part.index, "function": {"arguments": ""}})
        if part.id is not None:
            call |= {"id": part.id, "type": "function"}
            call["function"] = {"name": part.name, "arguments": ""}
        call["function"]["arguments"] += part.arguments
    return list(calls.values())


def _reason(parser: CallParser | None, reason: FinishReason | None) -> str | None:
    return "tool_calls" if parser is not None and parser.count and reason == "stop" else reason
