"""Work beside the event loop ends together with its thread."""

from __future__ import annotations

import threading

import pytest

from aegaeon_worker.passing_thread import on_passing_thread


async def test_the_thread_ends_with_the_work() -> None:
    thread = await on_passing_thread(threading.current_thread)
    assert thread is not threading.current_thread()
    thread.join(10)
    assert not thread.is_alive()


async def test_an_error_reaches_whoever_waits() -> None:
    with pytest.raises(ZeroDivisionError):
        await on_passing_thread(divmod, 1, 0)
