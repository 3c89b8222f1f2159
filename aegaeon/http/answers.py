"""What OpenAI's responses look like, whole and in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, ClassVar

from aegaeon.http.generation import Delta, Output
from aegaeon.http.schemas import ChatBody, CompletionBody, GenerationBody
from aegaeon.http.streaming import event

_DONE = b"data: [DONE]\n\n"


class Answer:
    """One response. Choice ``i`` belongs to prompt ``i // n``."""

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, body: GenerationBody, prompts: Sequence[Sequence[int]]) -> None:
        self._model = body.model
        self._n = body.n or 1
        self._include_usage = body.include_usage
        self._token_ids = body.return_token_ids
        self._prompts = prompts
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, outputs: Sequence[Output]) -> dict[str, Any]:
        """The response that is not streamed."""
        choices = [self._choice(index, output) for index, output in enumerate(outputs)]
        completion = sum(len(output.token_ids) for output in outputs)
        return {
            **self._head(self.kind),
            "choices": choices,
            "usage": self._usage(completion),
            **self._prompt_ids(),
        }

    async def events(self, deltas: AsyncIterator[tuple[int, Delta]]) -> AsyncIterator[bytes]:
        """The stream, up to ``[DONE]``."""
        completion = 0
        for choice in self._openings():
            yield event(self._chunk([choice]) | self._prompt_ids())
        async for index, delta in deltas:
            completion += len(delta.token_ids)
            if delta.text or delta.finish_reason or self._token_ids:
                yield event(self._chunk([self._part(index, delta)]))
        if self._include_usage:
            yield event(self._chunk([]) | {"usage": self._usage(completion)})
        yield _DONE

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"usage": None} if self._include_usage else {}
        return {**self._head(self.chunk_kind), "choices": choices, **usage}

    def _usage(self, completion: int) -> dict[str, int]:
        prompt = sum(len(ids) for ids in self._prompts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _ids(self, token_ids: list[int]) -> dict[str, Any]:
        return {"token_ids": token_ids} if self._token_ids else {}

    def _prompt_ids(self) -> dict[str, Any]:
        """Of the response as a whole."""
        return {}

    def _openings(self) -> Iterator[dict[str, Any]]:
        """Choices of the first chunks, before any token."""
        raise NotImplementedError

    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        raise NotImplementedError

    def _part(self, index: int, delta: Delta) -> dict[str, Any]:
        raise NotImplementedError


class ChatAnswer(Answer):
    """Of POST /v1/chat/completions."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, body: ChatBody, prompts: Sequence[Sequence[int]]) -> None:
        super().__init__(body, prompts)

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._prompts[0])} if self._token_ids else {}

    def _openings(self) -> Iterator[dict[str, Any]]:
        for index in range(self._n):
            yield self._delta(index, {"role": "assistant", "content": ""}, None)

    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": None,
            "finish_reason": output.finish_reason,
            **self._ids(output.token_ids),
        }

    def _part(self, index: int, delta: Delta) -> dict[str, Any]:
        content = {"content": delta.text} if delta.text else {}
        return self._delta(index, content, delta.finish_reason) | self._ids(delta.token_ids)

    @staticmethod
    def _delta(index: int, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


class CompletionAnswer(Answer):
    """Of POST /v1/completions; ``echoes`` are the prompts' texts, to go first, or empty."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def __init__(
        self, body: CompletionBody, prompts: Sequence[Sequence[int]], echoes: Sequence[str]
    ) -> None:
        super().__init__(body, prompts)
        self._echoes = echoes

    def _openings(self) -> Iterator[dict[str, Any]]:
        if not self._echoes and not self._token_ids:
            return
        for index in range(len(self._prompts) * self._n):
            yield self._text(index, self._echo(index), [], None) | self._own_prompt(index)

    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        text = self._echo(index) + output.text
        choice = self._text(index, text, output.token_ids, output.finish_reason)
        return choice | self._own_prompt(index)

    def _part(self, index: int, delta: Delta) -> dict[str, Any]:
        return self._text(index, delta.text, delta.token_ids, delta.finish_reason)

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._n] if self._echoes else ""

    def _own_prompt(self, index: int) -> dict[str, Any]:
        if not self._token_ids:
            return {}
        return {"prompt_token_ids": list(self._prompts[index // self._n])}

    def _text(
        self, index: int, text: str, token_ids: list[int], reason: str | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": reason,
            **self._ids(token_ids),
        }
