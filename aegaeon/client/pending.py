"""A request in a session: what it asked, what has arrived, how it ended."""

from __future__ import annotations

import asyncio
import time

from aegaeon.client.messages import finish_reason
from aegaeon.errors import AegaeonError, RequestCancelledError, RequestTimeoutError
from aegaeon.rpc.status import from_detail
from aegaeon.step_output import FinishReason, PromptLogprob, StepOutput
from aegaeon.v1 import inference_pb2


class PendingRequest:
    """Collects the tokens of one request across broken streams. Belongs to one event loop."""

    def __init__(
        self, stream_id: int, request: inference_pb2.GenerateRequest, timeout_ns: int
    ) -> None:
        self.stream_id = stream_id
        self.ended = False
        self.cancel_asked = False
        #: When its stream broke, by the monotonic clock; None while it gets on.
        self.lost_since: float | None = None
        self.steps: list[StepOutput] = []
        #: Fires after its deadline, unless it has ended by then.
        self.expiry: asyncio.TimerHandle | None = None
        #: Tokens of the prompt whose KV was there already; known with the first token.
        self.cached_tokens = 0
        #: What has been told of the prompt's tokens, in order; empty unless that was asked for.
        self._prompt: list[PromptLogprob | None] = (
            [None] if request.HasField("prompt_logprobs") else []
        )
        self._error: AegaeonError | None = None
        self._request = request
        self._timeout_ns = timeout_ns
        self._deadline = time.monotonic() + timeout_ns / 1e9 if timeout_ns else None
        self._ended = asyncio.Event()
        #: Set by whoever waits for steps; requests that nobody streams save the wake-ups.
        self._waiter: asyncio.Event | None = None

    async def wait(self, position: int) -> list[StepOutput]:
        """Steps from ``position`` on, once there are any; empty when the request has ended.

        Raises the error that ended it, after all steps before the error were returned.
        """
        while len(self.steps) == position and not self.ended:
            if self._waiter is None:
                self._waiter = asyncio.Event()
            await self._waiter.wait()
        if len(self.steps) == position and self._error is not None:
            raise self._error
        return self.steps[position:]

    async def result(self) -> list[StepOutput]:
        """All steps, at the end. Raises the error that ended the request."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self.steps

    def submission(self) -> inference_pb2.SessionSubmit:
        """The message that opens it, with the tokens that it already has. Raises
        RequestTimeoutError when its time is over."""
        remaining = 0
        if self._deadline is not None:
            remaining = int((self._deadline - time.monotonic()) * 1e9)
            if remaining <= 0:
                raise self.timed_out()
        del self._request.generated_token_ids[:]
        self._request.generated_token_ids.extend(step.new_token_id for step in self.steps)
        self._request.told_prompt_tokens = len(self._prompt)
        return inference_pb2.SessionSubmit(
            stream_id=self.stream_id, request=self._request, timeout_ns=remaining
        )

    def timed_out(self) -> AegaeonError:
        """What it ends with when the scheduler cannot say so."""
        return RequestTimeoutError(
            f"request {self._request.label!r}: its timeout of {self._timeout_ns / 1e9:g} s has "
            "passed, and the scheduler does not answer"
        )

    def add(self, step: StepOutput) -> None:
        """Take in a token."""
        if self._prompt and not self.steps:
            step = step._replace(prompt_logprobs=self._prompt)  # all of it is told by now
        self.steps.append(step)
        self.lost_since = None
        if self._waiter is not None:
            self._waiter.set()
            self._waiter = None

    def add_prompt(self, start: int, entries: list[PromptLogprob]) -> None:
        """Take in what is told of the prompt's tokens from ``start`` on; nothing is told twice."""
        assert start == len(self._prompt), f"told from {start} on, with {len(self._prompt)} known"
        self._prompt += entries
        self.lost_since = None

    def take_end(self, delta: inference_pb2.SessionDelta) -> None:
        """Take in how it ended."""
        self.lost_since = None
        number = delta.response.finish_reason
        if delta.HasField("error"):
            self.fail(from_detail(delta.error))
        elif number == inference_pb2.FINISH_REASON_CANCELLED:
            self.fail(RequestCancelledError(f"request {self._request.label!r} was cancelled"))
        elif (reason := finish_reason(number)) is not None:
            self.finish(reason)

    def may_resume(self, now: float, window_s: float) -> bool:
        """Note a loss; whether the first one since it got on is less than ``window_s`` ago."""
        if self.lost_since is None:
            self.lost_since = now
        return now - self.lost_since < window_s

    def finish_if_complete(self) -> bool:
        """End it when the stream broke between its last token and the news that it was the last."""
        stop = self._request.stop
        count = len(self.steps)
        ends = set(stop.stop_token_ids)
        if not stop.ignore_eos:
            ends.update(stop.eos_token_ids)
        if count and count >= stop.min_new_tokens and self.steps[-1].new_token_id in ends:
            self.finish("stop")
        elif count >= stop.max_new_tokens:
            self.finish("length")
        return self.ended

    def finish(self, reason: FinishReason) -> None:
        """End it well."""
        if self.steps:
            self.steps[-1] = self.steps[-1]._replace(
                finish_reason=reason, cached_tokens=self.cached_tokens
            )
        self._end()

    def fail(self, error: AegaeonError) -> None:
        """End it with an error."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self.ended = True
        self._ended.set()
        if self.expiry is not None:
            self.expiry.cancel()
        if self._waiter is not None:
            self._waiter.set()
