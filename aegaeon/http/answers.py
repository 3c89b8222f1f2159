"""What OpenAI's responses look like, whole and in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, ClassVar

from aegaeon.http.generation import Delta, Output
from aegaeon.http.logprobs import CompletionLogprobs, prompt_logprobs
from aegaeon.http.models import ServedModel
from aegaeon.http.sampling import logprobs_of
from aegaeon.http.schemas import CompletionBody, GenerationBody
from aegaeon.http.streaming import event
from aegaeon.step_output import PromptLogprob, StepOutput

#: Tokens of a prompt that one event of a stream tells of.
_PROMPT_PART = 1_024
_DONE = b"data: [DONE]\n\n"


class Answer:
    """One response. Choice ``i`` belongs to prompt ``i // n``."""

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(
        self,
        body: GenerationBody,
        model: ServedModel,
        prompts: Sequence[Sequence[int]],
        cut: int = 0,
    ) -> None:
        """``cut`` tokens were taken off the prompts, if that was asked for."""
        self._cut = None if body.truncate_prompt_tokens is None else cut
        self._model = body.model
        self._vocabulary = model.vocabulary
        self._logprobs = logprobs_of(body) is not None
        self._prompt_logprobs = body.prompt_logprobs
        self._n = body.answers
        self._include_usage = body.include_usage
        self._token_ids = body.return_token_ids
        self._prompts = prompts
        self._cached: dict[int, int] = {}
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, outputs: Sequence[Output], made: int) -> dict[str, Any]:
        """The response that is not streamed, for which ``made`` tokens were made."""
        for index, output in enumerate(outputs):
            self._note_cached(index, output)
        choices = [self._choice(index, output) for index, output in enumerate(outputs)]
        return {
            **self._head(self.kind),
            "choices": choices,
            "usage": self._usage(made),
            **self._prompt_ids(),
        }

    async def events(self, deltas: AsyncIterator[tuple[int, Delta]]) -> AsyncIterator[bytes]:
        """The stream, up to ``[DONE]``."""
        completion = 0
        for choice in self._openings():
            yield event(self._chunk([choice]) | self._prompt_ids())
        async for index, delta in deltas:
            completion += len(delta.steps)
            self._note_cached(index, delta)
            for part in self._parts(index, delta):
                yield event(self._chunk([part]))
        if self._include_usage:
            yield event(self._chunk([]) | {"usage": self._usage(completion)})
        yield _DONE

    def _head(self, kind: str) -> dict[str, Any]:
        head = {"id": self._id, "object": kind, "created": self._created, "model": self._model}
        return head if self._cut is None else {**head, "truncated_prompt_tokens": self._cut}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"usage": None} if self._include_usage else {}
        return {**self._head(self.chunk_kind), "choices": choices, **usage}

    def _note_cached(self, index: int, told: Delta | Output) -> None:
        """Of several answers to a prompt only the first one's count: the others find its tokens."""
        if told.finish_reason is not None:
            prompt = index // self._n
            known = self._cached.get(prompt, told.cached_tokens)
            self._cached[prompt] = min(known, told.cached_tokens)

    def _usage(self, completion: int) -> dict[str, Any]:
        prompt = sum(len(ids) for ids in self._prompts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }

    def _ids(self, steps: Sequence[StepOutput]) -> dict[str, Any]:
        return {"token_ids": [step.new_token_id for step in steps]} if self._token_ids else {}

    def _prompt_ids(self) -> dict[str, Any]:
        """Of the response as a whole."""
        return {}

    def _openings(self) -> Iterator[dict[str, Any]]:
        """Choices of the first chunks, before any token."""
        raise NotImplementedError

    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        raise NotImplementedError

    def _parts(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """Choices of chunks, one after another."""
        part = self._part(index, delta)
        if part is not None:
            yield part

    def _part(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """A choice of a chunk; None if there is nothing to tell yet."""
        raise NotImplementedError

    def _told(self, index: int, told: Sequence[PromptLogprob | None] | None) -> dict[str, Any]:
        """What vLLM's field says of the prompt of choice ``index``, if it is asked for."""
        if self._prompt_logprobs is None or told is None:
            return {}
        prompt, count = self._prompts[index // self._n], self._prompt_logprobs
        return {"prompt_logprobs": prompt_logprobs(self._vocabulary, prompt, told, count)}


class CompletionAnswer(Answer):
    """Of POST /v1/completions; ``echoes`` are the prompts' texts, to go first, or empty."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def __init__(
        self,
        body: CompletionBody,
        model: ServedModel,
        prompts: Sequence[Sequence[int]],
        echoes: Sequence[str],
        cut: int = 0,
    ) -> None:
        super().__init__(body, model, prompts, cut)
        self._echoes = echoes
        self._count = body.logprobs or 0
        self._logs = [CompletionLogprobs(model.vocabulary) for _ in range(len(prompts) * self._n)]

    def _openings(self) -> Iterator[dict[str, Any]]:
        if not self._echoes and not self._token_ids:
            return
        for index in range(len(self._prompts) * self._n):
            yield self._text(index, self._echo(index), [], None) | self._own_prompt(index)

    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        before = None
        if self._echoes and self._logprobs and output.prompt is not None:
            before = self._prompt_log(index, 0, output.prompt)
        text = self._echo(index) + output.text
        choice = self._text(index, text, output.steps, output.finish_reason, before)
        return choice | self._own_prompt(index) | self._told(index, output.prompt)

    def _parts(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        if self._echoes and self._logprobs and delta.prompt is not None:
            for start in range(0, len(delta.prompt), _PROMPT_PART):
                told = delta.prompt[start : start + _PROMPT_PART]
                yield self._text(index, "", [], None, self._prompt_log(index, start, told))
        yield from super()._parts(index, delta)

    def _part(self, index: int, delta: Delta) -> dict[str, Any] | None:
        if not (delta.text or delta.finish_reason or self._token_ids or self._logprobs):
            return None
        return self._text(index, delta.text, delta.steps, delta.finish_reason)

    def _prompt_log(
        self, index: int, start: int, told: Sequence[PromptLogprob | None]
    ) -> dict[str, list[Any]]:
        """Of an echoed prompt, from one of its tokens on."""
        prompt = self._prompts[index // self._n][start : start + len(told)]
        return self._logs[index].of_prompt(prompt, told, self._count)

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._n] if self._echoes else ""

    def _own_prompt(self, index: int) -> dict[str, Any]:
        if not self._token_ids:
            return {}
        return {"prompt_token_ids": list(self._prompts[index // self._n])}

    def _text(
        self,
        index: int,
        text: str,
        steps: Sequence[StepOutput],
        reason: str | None,
        before: dict[str, list[Any]] | None = None,
    ) -> dict[str, Any]:
        """A choice; ``before`` goes ahead of the log-probabilities of its ``steps``."""
        logprobs = self._logs[index].of(steps) if self._logprobs else None
        if logprobs is not None and before is not None:
            logprobs = {name: before[name] + values for name, values in logprobs.items()}
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
            **self._ids(steps),
        }
