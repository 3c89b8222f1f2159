"""The output of a response: messages and calls, with the events that tell of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from aegaeon.http.tools.parser import CallPart, Parts

Event = dict[str, Any]


class OutputItems:
    """Grows by what is new of an answer; at most one item is open."""

    def __init__(self) -> None:
        #: All items so far.
        self.output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None

    def add(self, parts: Parts) -> Iterator[Event]:
        """Take what is new, and tell of it."""
        if parts.text:
            yield from self._text(parts.text)
        for part in parts.calls:
            yield from self._call(part)

    def close(self) -> Iterator[Event]:
        """The open item is complete."""
        item, self._open = self._open, None
        if item is None:
            return
        item["status"] = "completed"
        place = self._place(item)
        if item["type"] == "message":
            [content] = item["content"]
            part = place | {"content_index": 0}
            yield {"type": "response.output_text.done", **part, "text": content["text"]} | {
                "logprobs": []
            }
            yield {"type": "response.content_part.done", **part, "part": dict(content)}
        else:
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **place, **done}
        index = place["output_index"]
        yield {"type": "response.output_item.done", "output_index": index, "item": dict(item)}

    def _text(self, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != "message":
            yield from self.close()
            content = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            message = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"}
            yield from self._begin({**message, "status": "in_progress", "content": []})
            assert self._open is not None
            self._open["content"] = [content]
            place = self._place(self._open)
            begun = {"content_index": 0, "part": dict(content)}
            yield {"type": "response.content_part.added", **place, **begun}
        assert self._open is not None
        self._open["content"][0]["text"] += text
        place = self._place(self._open) | {"content_index": 0}
        yield {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []}

    def _call(self, part: CallPart) -> Iterator[Event]:
        if part.id is not None:
            yield from self.close()
            call = {"id": f"fc_{uuid.uuid4().hex}", "type": "function_call", "call_id": part.id}
            named = {"name": part.name, "arguments": "", "status": "in_progress"}
            yield from self._begin({**call, **named})
        assert self._open is not None
        if part.arguments:
            self._open["arguments"] += part.arguments
            place = self._place(self._open)
            delta = {"type": "response.function_call_arguments.delta", "delta": part.arguments}
            yield {**delta, **place}

    def _begin(self, item: dict[str, Any]) -> Iterator[Event]:
        self.output.append(item)
        self._open = item
        index = len(self.output) - 1
        yield {"type": "response.output_item.added", "output_index": index, "item": dict(item)}

    def _place(self, item: dict[str, Any]) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": len(self.output) - 1}
