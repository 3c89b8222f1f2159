"""The event side of one Execute stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aegaeon_worker.engine.events import Event


class ExecuteStream:
    """Carries events from the engine's thread to the stream's writer, in order.

    Not bounded: one step makes one event, and the engine stands still without commands, so a
    scheduler that does not read can leave at most the steps of two turns here.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    def publish(self, event: Event) -> None:
        """Called on the engine's thread."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def close(self) -> None:
        """End the iteration once what was published before has been read. On the loop."""
        self._events.put_nowait(None)

    async def events(self) -> AsyncIterator[Event]:
        """Every event until ``close``."""
        while (event := await self._events.get()) is not None:
            yield event
