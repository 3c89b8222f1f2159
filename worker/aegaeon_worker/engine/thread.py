"""The engine's own thread, so that torch never runs on the event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)


Message = TypeVar("Message")
Taken = TypeVar("Taken", contravariant=True)


class Runnable(Protocol[Taken]):
    """What the thread runs; nobody else calls it then."""

    @property
    def has_work(self) -> bool:
        """``step`` has something to do."""

    @property
    def spare_s(self) -> float:
        """How long commands may be waited for ahead of the next ``step``, though it has work."""

    def handle(self, command: Taken, /) -> None:
        """Apply one command."""

    def step(self) -> None:
        """Go on by one step."""


class EngineThread(Generic[Message]):
    """Feeds commands to an engine between its steps, and blocks while there is nothing to do."""

    def __init__(self) -> None:
        # None ends the thread. Unbounded on purpose: its writer is one flow-controlled stream.
        # A future is a question whether anybody is there.
        self._inbox: queue.SimpleQueue[Message | Future[None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._broken: Future[BaseException] = Future()

    def start(self, engine: Runnable[Message]) -> None:
        """Begin to run ``engine``, which belongs to the thread from now on."""
        self._thread = threading.Thread(
            target=self._run, args=(engine,), name="engine", daemon=True
        )
        self._thread.start()

    def submit(self, command: Message) -> None:
        """Hand over a command; from any thread, never blocks."""
        self._inbox.put(command)

    def stop(self) -> None:
        """End after the step under way and wait for it."""
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join()

    async def answer(self) -> None:
        """Return once the thread has come round to its commands; never if it is stuck or gone."""
        question: Future[None] = Future()
        self._inbox.put(question)
        await asyncio.wrap_future(question)

    @property
    def failure(self) -> BaseException | None:
        """Why the engine itself broke; the process is then of no more use. None while it runs."""
        return self._broken.result() if self._broken.done() else None

    async def wait_broken(self) -> BaseException:
        """Return when the engine has broken; never after an ordinary stop."""
        return await asyncio.wrap_future(self._broken)

    def _run(self, engine: Runnable[Message]) -> None:
        try:
            while self._take_commands(engine):
                engine.step()
        except BaseException as error:
            logger.exception("the engine broke")
            self._broken.set_result(error)

    def _take_commands(self, engine: Runnable[Message]) -> bool:
        """Apply what has come in, waiting for something if the engine has no work, or time."""
        while True:
            wait_s = engine.spare_s if engine.has_work else None
            try:
                command = self._inbox.get(wait_s != 0, wait_s or None)
            except queue.Empty:
                return True
            if command is None:
                return False
            if isinstance(command, Future):
                if command.set_running_or_notify_cancel():
                    command.set_result(None)
            else:
                engine.handle(command)
