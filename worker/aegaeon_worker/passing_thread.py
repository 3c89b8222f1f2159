"""Work beside the event loop that leaves no thread behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def on_passing_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As ``asyncio.to_thread``, but on a thread that ends with the work.

    A thread that has run a parallel torch operation keeps OpenMP helpers for as long as it lives.
    With more of them than processors, OpenMP stops spinning at its barriers, in the engine's steps
    as well, which then take a quarter longer.
    """
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passing")
    try:
        call = partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(executor, call)
    finally:
        executor.shutdown(wait=False)
