"""Threads that read and pack checkpoints, or compile kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial


class Packers:
    """Runs jobs one after another, each on a thread that ends with it.

    A thread that has run a parallel torch operation keeps OpenMP helpers for as long as it lives.
    With more of them than processors, OpenMP stops spinning at its barriers, in the engine's steps
    as well, which made a decode step a third slower.
    """

    def __init__(self, name: str = "packer") -> None:
        """``name`` is that of the threads."""
        self._name = name
        self._one_at_a_time = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether a job under way has to end as soon as it can."""
        return self._closed

    def submit(self, job: Callable[..., None], *arguments: object) -> None:
        """Run ``job(*arguments)`` once the jobs before it are done. From one thread only."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        run = partial(self._run, partial(job, *arguments))
        thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Drop the jobs that wait, and return when the one under way is done."""
        self._closed = True
        for thread in self._threads:
            thread.join()

    def _run(self, job: Callable[[], None]) -> None:
        with self._one_at_a_time:
            if not self._closed:
                job()
