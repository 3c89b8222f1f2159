"""What a session's stream has yet to send."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

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

    async def messages(self, *, grouped: bool) -> AsyncIterator[inference_pb2.SessionRequest]:
        """Messages, until it is closed; one per submission unless ``grouped``."""
        while not self._closed:
            if not self._entries:
                self._filled.clear()
                await self._filled.wait()
                continue
            entry = self._entries[0]
            if isinstance(entry, inference_pb2.SessionCancel):
                self._entries.popleft()
                yield inference_pb2.SessionRequest(cancel=entry)
            elif not grouped:
                self._entries.popleft()
                yield inference_pb2.SessionRequest(submit=entry)
            else:
                submits = inference_pb2.SessionSubmits(submits=self._take_submits())
                yield inference_pb2.SessionRequest(submits=submits)

    def _take_submits(self) -> list[inference_pb2.SessionSubmit]:
        taken: list[inference_pb2.SessionSubmit] = []
        tokens = 0
        while self._entries and len(taken) < _MAX_MESSAGE_SUBMITS:
            entry = self._entries[0]
            if not isinstance(entry, inference_pb2.SessionSubmit):
                break
            request = entry.request
            tokens += len(request.prompt_token_ids) + len(request.generated_token_ids)
            if taken and tokens > _MAX_MESSAGE_TOKENS:
                break
            self._entries.popleft()
            taken.append(entry)
        return taken
