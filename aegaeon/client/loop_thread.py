"""An event loop on a thread of its own, so that one channel serves every caller's thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from aegaeon.errors import AegaeonError

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads and loops until it is stopped."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon thread, since an ordinary one would be waited for before any exit handler runs,
        # and a service that nobody closed would keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine; cancelling the future cancels it. Raises AegaeonError after `stop`."""
        if not self._thread.is_alive() or self._loop.is_closed():
            coroutine.close()
            raise AegaeonError("the service is closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for it. If the wait is interrupted, by Ctrl-C for instance,
        the coroutine is cancelled and has finished its clean-up when the exception goes on."""
        done = threading.Event()

        async def supervised() -> T:
            try:
                return await coroutine
            finally:
                done.set()

        future = self.submit(supervised())
        try:
            return future.result()
        except BaseException:
            if not future.done() and future.cancel():
                done.wait(timeout=5.0)
            raise

    async def bridge(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine here for a caller on another loop; cancellation goes along."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def is_current(self) -> bool:
        """Whether the caller runs on this thread, where waiting for it would never end."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Cancel what still runs, end the loop, join the thread. Idempotent."""
        if not self._thread.is_alive():
            return
        self.submit(_cancel_others()).result(timeout=10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10.0)


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
