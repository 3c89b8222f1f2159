"""What a session's stream has yet to send."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from aegaeon.capability import Capabilities, Capability
from aegaeon.errors import PreconditionError
from aegaeon.rpc.needs import SCHEDULER, check_scheduler
from aegaeon.v1 import inference_pb2

#: Tokens of the requests in one message, unless a single request has more: half a megabyte.
_MAX_MESSAGE_TOKENS = 100_000
_MAX_MESSAGE_SUBMITS = 256


class Outbox:
    """A queue whose neighbouring submissions leave in one message, since the scheduler starts
    together what comes together. Belongs to one event loop."""

    def __init__(self) -> None:
        self._entries: deque[inference_pb2.SessionSubmit | inference_pb2.SessionCancel] = deque()
        self._filled = asyncio.Event()
        self._closed = False

    def put(self, entry: inference_pb2.SessionSubmit | inference_pb2.SessionCancel) -> None:
        """Send it after everything that is there."""
        self._entries.append(entry)
        self._filled.set()

    def close(self) -> None:
        """The stream is lost: end what waits for something to send on it."""
        self._closed = True
        self._filled.set()

    async def messages(
        self, known: Capabilities, refuse: Callable[[int, PreconditionError], None]
    ) -> AsyncIterator[inference_pb2.SessionRequest]:
        """Messages for a scheduler that knows this much, until it is closed.

        A submission that needs more is not sent; ``refuse`` is told of it, by its stream id.
        """
        while not self._closed:
            if not self._entries:
                self._filled.clear()
                await self._filled.wait()
                continue
            entry = self._entries[0]
            if isinstance(entry, inference_pb2.SessionCancel):
                self._entries.popleft()
                yield inference_pb2.SessionRequest(cancel=entry)
            elif (error := _refusal(entry, known)) is not None:
                self._entries.popleft()
                refuse(entry.stream_id, error)
            elif Capability.GROUPED_SUBMISSIONS not in known:
                self._entries.popleft()
                yield inference_pb2.SessionRequest(submit=entry)
            else:
                submits = inference_pb2.SessionSubmits(submits=self._take_submits(known))
                yield inference_pb2.SessionRequest(submits=submits)

    def _take_submits(self, known: Capabilities) -> list[inference_pb2.SessionSubmit]:
        taken: list[inference_pb2.SessionSubmit] = []
        tokens = 0
        while self._entries and len(taken) < _MAX_MESSAGE_SUBMITS:
            entry = self._entries[0]
            if not isinstance(entry, inference_pb2.SessionSubmit) or _refusal(entry, known):
                break
            request = entry.request
            tokens += len(request.prompt_token_ids) + len(request.generated_token_ids)
            if taken and tokens > _MAX_MESSAGE_TOKENS:
                break
            self._entries.popleft()
            taken.append(entry)
        return taken


def _refusal(
    submission: inference_pb2.SessionSubmit, known: Capabilities
) -> PreconditionError | None:
    """Why it may not be sent."""
    try:
        check_scheduler(SCHEDULER.needs(submission.request), known)
    except PreconditionError as error:
        return error
    return None
