"""One sequence as text: submitted, detokenized, cut at stop strings, cancelled when unwanted."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aegaeon.client.messages import to_generate_request
from aegaeon.client.pending import PendingRequest
from aegaeon.client.session import Session
from aegaeon.constraint import Constraint
from aegaeon.errors import EngineError, ErrorReason, InvalidRequestError
from aegaeon.http.detokenizer import Detokenizer
from aegaeon.http.models import ServedModel
from aegaeon.http.sampling import prompt_logprobs_of, sampling_of
from aegaeon.http.schemas import GenerationBody
from aegaeon.http.stop_strings import StopStrings
from aegaeon.request import Request
from aegaeon.security.guard import current_caller
from aegaeon.step_output import FinishReason, PromptLogprob, StepOutput
from aegaeon.tracing import current_trace_parent

_MAX_LABEL_BYTES = 256


class Delta(NamedTuple):
    """What is new of a sequence; the last one has the reason for its end."""

    text: str
    steps: Sequence[StepOutput]
    finish_reason: FinishReason | None = None
    #: Of the last one: tokens of the prompt that had been computed before.
    cached_tokens: int = 0
    #: Of the first one: what is told of the prompt's tokens, if that was asked for.
    prompt: Sequence[PromptLogprob | None] | None = None


@dataclass
class Output:
    """All of a sequence."""

    text: str = ""
    steps: list[StepOutput] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    prompt: Sequence[PromptLogprob | None] | None = None

    @property
    def score(self) -> float:
        """Its log-probability per token; of those that are to be scored."""
        total = sum(-math.inf if step.logprob is None else step.logprob for step in self.steps)
        return total / max(1, len(self.steps))

    def add(self, delta: Delta) -> None:
        """Append."""
        self.text += delta.text
        self.steps += delta.steps
        self.finish_reason = delta.finish_reason
        self.cached_tokens = delta.cached_tokens
        if delta.prompt is not None:
            self.prompt = delta.prompt


@dataclass(frozen=True)
class Form:
    """What a request wants of its answers' text, besides what its body says."""

    #: Tokens to make at most; None goes on as far as there is room. With 0 the one that a sequence
    #: makes at least, which costs nothing beside its prompt, is kept from its caller.
    max_tokens: int | None = None
    constraint: Constraint | None = None
    #: Answers per prompt of which the best are given; 0 makes as many as are given.
    candidates: int = 0
    #: Special tokens that are text all the same.
    shown: frozenset[int] = frozenset()


class Generation:
    """A sequence that has been submitted, the ``number``-th of its prompt, from 0.

    `close` cancels it unless it has ended.
    """

    def __init__(
        self,
        session: Session,
        model: ServedModel,
        body: GenerationBody,
        prompt: Sequence[int],
        form: Form,
        label: str,
        number: int,
        first: Generation | None = None,
    ) -> None:
        """``first`` is that of number 0: it tells all of them of their prompt."""
        self._session = session
        self._detokenizer = Detokenizer(
            model.vocabulary, skip_special_tokens=body.skip_special_tokens, shown=form.shown
        )
        self._stops = StopStrings(body.stop_strings)
        self._min_tokens = body.min_tokens
        self._ends = {*(body.stop_token_ids or ())}
        if not body.ignore_eos:
            self._ends.update(model.eos_token_ids)
        self._count = 0
        self._silent = form.max_tokens == 0
        request = _request(model, body, prompt, form, label, number)
        self._pending: PendingRequest = session.submit(to_generate_request(request))
        self._scored: PendingRequest = first._scored if first else self._pending
        self._told = 0 if prompt_logprobs_of(body) is None else len(prompt)

    async def deltas(self) -> AsyncIterator[Delta]:
        """Text as it is made; the last delta, and no other, has a finish reason.

        Raises the error that ended the sequence.
        """
        if self._silent:
            await self._pending.wait(0)
            yield Delta("", [], "length", self._pending.cached_tokens, await self._prompt())
            return
        position = 0
        while steps := await self._pending.wait(position):
            told = None if position else await self._prompt()
            position += len(steps)
            count, text = self._take([step.new_token_id for step in steps])
            if self._stops.found is not None:
                self.close()
                yield Delta(text, steps[:count], "stop", self._pending.cached_tokens, told)
                return
            reason = steps[-1].finish_reason
            if reason is not None:
                yield self._last(text, steps, reason)._replace(prompt=told)
                return
            yield Delta(text, steps, prompt=told)
        # Its last token came before the news that it was the last.
        yield self._last("", [], self._pending.steps[-1].finish_reason)

    async def output(self) -> Output:
        """All of it, at the end."""
        output = Output()
        if not self._stops.watching:
            await self._pending.result()  # saves the wake-ups in between
        async for delta in self.deltas():
            output.add(delta)
        return output

    @property
    def made(self) -> int:
        """Tokens so far."""
        return 0 if self._silent else len(self._pending.steps)

    def close(self) -> None:
        """Free what it uses within a step."""
        if not self._pending.ended:
            self._session.cancel(self._pending)

    async def _prompt(self) -> Sequence[PromptLogprob | None] | None:
        """What is told of the prompt, if that was asked for: with the first token of the sequence
        that was to tell it."""
        if not self._told:
            return None
        told = (await self._scored.wait(0))[0].prompt_logprobs
        if told is None or len(told) != self._told:
            raise EngineError(
                "no log-probabilities of the prompt have been told: the scheduler or the worker is "
                "of an older release; upgrade it"
            )
        return told

    def _take(self, token_ids: list[int]) -> tuple[int, str]:
        """How many tokens up to the one that completes a stop string, and their text."""
        if not self._stops.watching:
            self._count += len(token_ids)
            # A token that ends the sequence is no text; it is the last one.
            shown = token_ids[:-1] if self._ended_by(token_ids[-1]) else token_ids
            return len(token_ids), self._detokenizer.feed(shown)
        text = ""
        for index, token in enumerate(token_ids):
            self._count += 1
            if self._ended_by(token):
                continue
            piece = self._detokenizer.feed((token,))
            text += self._stops.feed(piece) if self._count > self._min_tokens else piece
            if self._stops.found is not None:
                return index + 1, text
        return len(token_ids), text

    def _ended_by(self, token: int) -> bool:
        return token in self._ends and self._count >= self._min_tokens

    def _last(self, text: str, steps: Sequence[StepOutput], reason: FinishReason | None) -> Delta:
        """The end, with the text that was held back."""
        text += self._stops.feed(self._detokenizer.finish())
        if self._stops.found is not None:
            return Delta(text, steps, "stop", self._pending.cached_tokens)
        return Delta(text + self._stops.finish(), steps, reason, self._pending.cached_tokens)


def _request(
    model: ServedModel,
    body: GenerationBody,
    prompt: Sequence[int],
    form: Form,
    label: str,
    number: int,
) -> Request:
    room = model.max_model_len - len(prompt)
    if not prompt:
        raise InvalidRequestError(
            "the prompt has no tokens; at least one is needed", reason=ErrorReason.EMPTY_PROMPT
        )
    if room < 1:
        raise InvalidRequestError(
            f"the prompt has {len(prompt)} tokens and the context of model {model.name!r} is "
            f"{model.max_model_len} tokens, of which at least one must be left for the answer",
            reason=ErrorReason.PROMPT_TOO_LONG,
            metadata={"prompt_tokens": len(prompt), "max_model_len": model.max_model_len},
        )
    return Request(
        model=model.name,
        arrival_time=time.time(),
        request_id=_label(label, body.caller),
        prompt_token_ids=prompt,
        decode_tokens=None if form.max_tokens is None else max(1, min(form.max_tokens, room)),
        eos_token_ids=() if body.ignore_eos else model.eos_token_ids,
        stop_token_ids=body.stop_token_ids or (),
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        priority=body.priority,
        prefix_caching=body.prefix_caching,
        cache_salt=current_caller.get().own_salt(body.cache_salt or ""),
        trace_parent=current_trace_parent.get(),
        sampling=sampling_of(body, number, form.constraint, scored=form.candidates > 0),
        # One sequence tells it for all; the others may find the prompt computed.
        prompt_logprobs=None if number else prompt_logprobs_of(body),
    )


def _label(request_id: str, user: str | None) -> str:
    """As much of both as a label may have."""
    text = f"{request_id} {user}" if user else request_id
    return text.encode()[:_MAX_LABEL_BYTES].decode(errors="ignore")
