"""What OpenAI's responses look like, whole and as events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from aegaeon.http.answers import Answer
from aegaeon.http.chat_request import ChatRequest
from aegaeon.http.generation import Delta, Output
from aegaeon.http.responses.items import Event, OutputItems
from aegaeon.http.responses.schemas import ResponsesBody
from aegaeon.http.schemas import ChatBody
from aegaeon.http.streaming import event
from aegaeon.http.tools.parser import parts_of
from aegaeon.step_output import FinishReason


class ResponsesAnswer(Answer):
    """Of POST /v1/responses."""

    prefix = "resp"
    kind = chunk_kind = "response"

    def __init__(self, asked: ResponsesBody, body: ChatBody, chat: ChatRequest) -> None:
        super().__init__(body, chat.model, [chat.prompt])
        self._asked = asked
        self._parser = chat.plan.parser()
        self._items = OutputItems()
        self._number = 0

    def whole(self, outputs: Sequence[Output], made: int) -> dict[str, Any]:
        """The response that is not streamed, for which ``made`` tokens were made."""
        [output] = outputs
        parts = parts_of(self._parser, output.text, ends=True)
        self._note_cached(0, output)
        for _ in (*self._items.add(parts), *self._items.close()):
            pass
        return self._response(output.finish_reason, made)

    async def events(self, deltas: AsyncIterator[tuple[int, Delta]]) -> AsyncIterator[bytes]:
        """The stream, whose last event holds the whole response."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event({"type": kind, "response": self._response(None, 0)})
        completion, reason = 0, None
        async for _, delta in deltas:
            completion += len(delta.steps)
            self._note_cached(0, delta)
            reason = delta.finish_reason
            parts = parts_of(self._parser, delta.text, ends=reason is not None)
            for told in self._items.add(parts):
                yield self._event(told)
        for told in self._items.close():
            yield self._event(told)
        response = self._response(reason, completion)
        yield self._event({"type": f"response.{response['status']}", "response": response})

    def _event(self, told: Event) -> bytes:
        self._number += 1
        return event({**told, "sequence_number": self._number - 1}, told["type"])

    def _response(self, reason: FinishReason | None, completion: int) -> dict[str, Any]:
        asked = self._asked
        status = {None: "in_progress", "length": "incomplete"}.get(reason, "completed")
        given = asked.model_dump(by_alias=True, exclude_none=True)
        return {
            "id": self._id,
            "object": self.kind,
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": asked.model,
            "output": self._items.output,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "text": given.get("text") or {"format": {"type": "text"}},
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": given.get("tools", []),
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "truncation": "disabled",
            "usage": None if reason is None else self._tokens(completion),
            "user": asked.user,
            "safety_identifier": asked.safety_identifier,
            "prompt_cache_key": asked.prompt_cache_key,
        }

    def _tokens(self, completion: int) -> dict[str, Any]:
        usage = self._usage(completion)
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
