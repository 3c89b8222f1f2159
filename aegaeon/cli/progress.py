"""Daemons and models on their way: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from aegaeon.instances.steps import Ending, Step


class StepView:
    """Shows steps on standard error until `stop`. May be called from several threads."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bars: Progress | None = None
        if console.is_terminal:
            self._bars = Progress(
                SpinnerColumn(finished_text="[green]✓[/]"),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[state]}", markup=False),
                console=console,
            )
        self._tasks: dict[str, TaskID] = {}
        self._states: dict[str, str] = {}
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Leave what is drawn as it is. Idempotent."""
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, item: Step | Ending) -> None:
        """Show a step; the end is for others to tell."""
        if not isinstance(item, Step):
            return
        with self._lock:
            if self._bars is None:
                self._print(item)
            else:
                self._draw(self._bars, item)

    def _print(self, step: Step) -> None:
        # A line per change of state; bytes in between would be hundreds.
        if self._states.get(step.what) != step.state:
            self._states[step.what] = step.state
            print(f"{step.what}: {step.state}", file=sys.stderr, flush=True)

    def _draw(self, bars: Progress, step: Step) -> None:
        bars.start()
        task = self._tasks.get(step.what)
        if task is None:
            task = self._tasks[step.what] = bars.add_task(step.what, total=None, state="")
        state = step.state
        if step.total_bytes and not step.done:
            state = f"{state}, {step.packed_bytes / 1e9:.1f} of {step.total_bytes / 1e9:.1f} GB"
        total, completed = step.total_bytes or None, step.packed_bytes
        if step.done:
            total = completed = 1
        bars.update(task, total=total, completed=completed, state=state)
