"""Processor time of a process's threads, to the nanosecond."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class ThreadTime(NamedTuple):
    """Of one thread since it began, in ns."""

    running_ns: int
    waiting_ns: int
    """It could have run, and others had the cores."""


def thread_times(pid: int) -> dict[int, ThreadTime]:
    """Every thread of a process that still runs, by its id."""
    found = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        try:
            running, waiting, _ = (folder / "schedstat").read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        found[int(folder.name)] = ThreadTime(int(running), int(waiting))
    return found


def spent(
    before: Mapping[int, ThreadTime], after: Mapping[int, ThreadTime]
) -> dict[int, ThreadTime]:
    """Between two looks, by thread."""
    nothing = ThreadTime(0, 0)
    return {
        thread: ThreadTime(
            now.running_ns - before.get(thread, nothing).running_ns,
            now.waiting_ns - before.get(thread, nothing).waiting_ns,
        )
        for thread, now in after.items()
    }
