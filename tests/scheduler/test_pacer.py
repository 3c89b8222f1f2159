"""Messages of all readers together stay below a limit, and nothing waits below it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from aegaeon_scheduler.service import pacer


async def test_a_few_messages_never_wait() -> None:
    turns = pacer.Pacer()
    for _ in range(3):
        waits = [turns.turn() for _ in range(pacer.BURST)]
        assert not any([await _suspends(wait) for wait in waits])
        await asyncio.sleep(pacer.BURST / pacer.MESSAGES_PER_S + 0.01)


async def test_many_senders_together_keep_the_limit() -> None:
    turns, count = pacer.Pacer(), 0
    loop = asyncio.get_running_loop()
    start, end = loop.time(), loop.time() + 0.3

    async def send() -> None:
        nonlocal count
        while loop.time() < end:
            await turns.turn()
            count += 1

    await asyncio.gather(*(send() for _ in range(50)))
    assert count <= pacer.BURST + pacer.MESSAGES_PER_S * (loop.time() - start) + 1


async def _suspends(wait: Coroutine[Any, Any, None]) -> bool:
    """Whether a coroutine cannot finish at once."""
    task = asyncio.ensure_future(wait)
    await asyncio.sleep(0)
    suspended = not task.done()
    await task
    return suspended
