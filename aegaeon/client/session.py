"""Many requests over one stream, which survives a restart of the scheduler."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, Self

import grpc

from aegaeon.client.capabilities import scheduler_capabilities
from aegaeon.client.log_probabilities import prompt_pieces, steps_with_log_probabilities
from aegaeon.client.outbox import Outbox
from aegaeon.client.pending import PendingRequest
from aegaeon.errors import AegaeonError, ErrorReason, RequestCancelledError, UnavailableError
from aegaeon.rpc.status import from_rpc_error
from aegaeon.step_output import StepOutput
from aegaeon.v1 import inference_pb2, inference_pb2_grpc

#: Longest time that a request waits for a scheduler that takes it again, in seconds.
RESUME_WINDOW_S = 60.0
_RETRY_DELAY_S = 0.2
_CHECK_INTERVAL_S = 0.2
# What a restarted scheduler answers until its workers have registered again, or while it is full.
_STOPPING = ErrorReason.SHUTTING_DOWN.value
_RETURNING = frozenset(
    reason.value
    for reason in (
        ErrorReason.MODEL_NOT_FOUND,
        ErrorReason.MODEL_NOT_READY,
        # Everybody comes back at once, and new requests came before.
        ErrorReason.QUEUE_FULL,
    )
)
#: Time after a request's deadline in which the scheduler may say so itself, in seconds.
_DEADLINE_GRACE_S = 1.0


class Session:
    """Opens its stream with the first request and keeps it until it is closed.

    When the stream breaks, or the scheduler says that it is stopping, unfinished requests are
    submitted again with the tokens that they have, so that no token is lost or doubled; one that no
    scheduler takes for ``resume_window_s`` fails.
    ``check`` is called all the time and raises the error that ends them at once, if there is one.
    Belongs to the event loop that it is used on.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        check: Callable[[], None] | None = None,
        resume_window_s: float = RESUME_WINDOW_S,
    ) -> None:
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._check = check
        self._window_s = resume_window_s
        self._ids = itertools.count(1)
        self._pending: dict[int, PendingRequest] = {}
        self._outbox = Outbox()
        self._helpers: set[asyncio.Task[None]] = set()
        self._runner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def submit(self, request: inference_pb2.GenerateRequest, timeout_ns: int = 0) -> PendingRequest:
        """Open a request; the session keeps ``request`` and changes its generated tokens."""
        pending = PendingRequest(next(self._ids), request, timeout_ns)
        self._pending[pending.stream_id] = pending
        if timeout_ns:
            delay_s = timeout_ns / 1e9 + _DEADLINE_GRACE_S
            loop = asyncio.get_running_loop()
            pending.expiry = loop.call_later(delay_s, self._expire, pending)
        self._send(pending)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
            self._runner.add_done_callback(self._report_fault)
            if self._check is not None:
                self._help(_watch(self._check, self._runner, self._fail_all))
        return pending

    def cancel(self, pending: PendingRequest) -> None:
        """Ask for an early end; the request then fails with RequestCancelledError."""
        pending.cancel_asked = True
        self._outbox.put(inference_pb2.SessionCancel(stream_id=pending.stream_id))

    async def close(self) -> None:
        """Break the stream, which cancels what is unfinished; the cancel has been sent then."""
        tasks = [*self._helpers, *([self._runner] if self._runner else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail_all(RequestCancelledError("the session was closed before the request ended"))

    def _expire(self, pending: PendingRequest) -> None:
        """Its deadline has passed, and nobody has said so: the scheduler hangs."""
        if not pending.ended:
            self.cancel(pending)
            self._fail(pending, pending.timed_out())

    def _send(self, pending: PendingRequest) -> None:
        try:
            submission = pending.submission()
        except AegaeonError as error:
            self._fail(pending, error)
            return
        self._outbox.put(submission)

    async def _run(self) -> None:
        """Streams, one after another, until one ends with nothing left to do."""
        while True:
            try:
                problem = await self._one_stream()
            except AegaeonError as error:
                self._outbox = Outbox()
                self._fail_all(error)
                return
            # Requests and cancels of before are for a stream that is gone, whose sender still waits
            # for one more message and would swallow it.
            self._outbox = Outbox()
            self._settle_after_loss(problem)
            if not self._pending:
                return
            await asyncio.sleep(_RETRY_DELAY_S)
            # What was submitted meanwhile is pending as well.
            self._outbox = Outbox()
            for pending in list(self._pending.values()):
                self._send(pending)

    async def _one_stream(self) -> AegaeonError:
        """Serve until the stream is lost; why it was. Raises AegaeonError when a new stream would
        end in the same way."""
        call = None
        try:
            # Asked for every stream: another release may have taken the scheduler's place.
            known = await scheduler_capabilities(self._stub)
            call = self._stub.Session(self._outbox.messages(known, self._refuse))
            async for response in call:
                self._take_tokens(response)
                for delta in response.deltas:
                    self._take_end(delta)
        except grpc.aio.AioRpcError as error:
            problem = from_rpc_error(error)
            if not _is_loss(error.code(), problem):
                raise problem from error
            return problem
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # gRPC raises the same when a stopping server cancels the call.
        finally:
            if call is not None:
                call.cancel()
            self._outbox.close()
        return UnavailableError(
            "the scheduler ended the stream before its requests had ended",
            reason=ErrorReason.SHUTTING_DOWN,
        )

    def _settle_after_loss(self, problem: AegaeonError) -> None:
        """Note the loss, and end what needs no scheduler or has waited too long for one."""
        now = time.monotonic()
        for pending in list(self._pending.values()):
            if pending.finish_if_complete():
                del self._pending[pending.stream_id]
            elif pending.cancel_asked:
                self._fail(pending, RequestCancelledError("the request was cancelled"))
            elif not pending.may_resume(now, self._window_s):
                self._fail(pending, problem)

    def _take_tokens(self, response: inference_pb2.SessionResponse) -> None:
        get = self._pending.get
        cached = zip(response.cached_stream_ids, response.cached_tokens, strict=True)
        for stream_id, count in cached:
            if (pending := get(stream_id)) is not None:
                pending.cached_tokens = count
        if response.HasField("prompt_log_probabilities"):
            for stream_id, start, entries in prompt_pieces(response.prompt_log_probabilities):
                if (pending := get(stream_id)) is not None:
                    pending.add_prompt(start, entries)
        if response.HasField("log_probabilities"):
            for stream_id, step in steps_with_log_probabilities(response):
                pending = get(stream_id)
                if pending is not None:
                    pending.add(step)
            return
        tokens = zip(response.stream_ids, response.token_ids, strict=True)
        for count, step_time_ns, received_unix_ns in zip(
            response.step_token_counts,
            response.step_times_ns,
            response.received_unix_ns,
            strict=True,
        ):
            for stream_id, token in islice(tokens, count):
                pending = get(stream_id)
                if pending is not None:
                    pending.add(StepOutput(token, None, step_time_ns, received_unix_ns))

    def _take_end(self, delta: inference_pb2.SessionDelta) -> None:
        pending = self._pending.get(delta.stream_id)
        if pending is None:
            return
        reason = delta.error.reason
        if reason == _STOPPING or (pending.lost_since is not None and reason in _RETURNING):
            if pending.cancel_asked:
                self._fail(pending, RequestCancelledError("the request was cancelled"))
                return
            if pending.may_resume(time.monotonic(), self._window_s):
                self._resubmit(pending)
                return
        pending.take_end(delta)
        if pending.ended:
            del self._pending[pending.stream_id]

    def _resubmit(self, pending: PendingRequest) -> None:
        outbox = self._outbox

        async def later() -> None:
            await asyncio.sleep(_RETRY_DELAY_S)
            # After another loss, the request is in the new stream already.
            if self._outbox is outbox and not pending.ended:
                self._send(pending)

        self._help(later())

    def _help(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    def _report_fault(self, runner: asyncio.Task[None]) -> None:
        # A fault of ours must not leave callers waiting for ever.
        if not runner.cancelled() and (fault := runner.exception()) is not None:
            self._fail_all(AegaeonError(f"the client's session failed: {fault!r}"))

    def _refuse(self, stream_id: int, error: AegaeonError) -> None:
        pending = self._pending.get(stream_id)
        if pending is not None:
            self._fail(pending, error)

    def _fail(self, pending: PendingRequest, error: AegaeonError) -> None:
        del self._pending[pending.stream_id]
        pending.fail(error)

    def _fail_all(self, error: AegaeonError) -> None:
        for pending in list(self._pending.values()):
            self._fail(pending, error)


def _is_loss(code: grpc.StatusCode, problem: AegaeonError) -> bool:
    # gRPC reports a write that met a breaking stream as INTERNAL, and a call that a stopping server
    # ended as CANCELLED; a scheduler's own internal errors have a detail and with it a reason.
    bare = problem.reason is ErrorReason.UNSPECIFIED
    lost = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    return lost or (code is grpc.StatusCode.INTERNAL and bare)


async def _watch(
    check: Callable[[], None], runner: asyncio.Task[None], fail: Callable[[AegaeonError], None]
) -> None:
    while not runner.done():
        try:
            check()
        except AegaeonError as error:
            fail(error)
            runner.cancel()
            return
        await asyncio.sleep(_CHECK_INTERVAL_S)
