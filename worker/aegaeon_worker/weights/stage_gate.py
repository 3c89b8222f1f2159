"""Lets compute start while weights are still being copied."""

from __future__ import annotations

from collections.abc import Iterable

from aegaeon_worker.device.interface import CopyMark
from aegaeon_worker.weights.layout import Stage, WeightLayout


class StageGate:
    """One door per stage of a layout, held by the copy that brings the stage's bytes.

    A model passes the doors in the order of its layout. Waiting orders the device's work and never
    blocks the caller; a door that nobody holds costs a look.
    """

    def __init__(self, layout: WeightLayout) -> None:
        self._order = {stage.name: index for index, stage in enumerate(layout.stages)}
        self._marks: dict[int, CopyMark] = {}
        self._recent: list[CopyMark] = []

    @property
    def open(self) -> bool:
        """Whether no door is held: all compute issued from now on finds every byte."""
        return not self._marks

    @property
    def done(self) -> bool:
        """Whether every copy issued so far is complete; never blocks."""
        return all(mark.done for mark in self._recent)

    @property
    def busy(self) -> bool:
        """Whether two copies are under way, so that the link will not idle; never blocks."""
        return len(self._recent) == 2 and not self._recent[0].done

    def wait(self, stage: str) -> None:
        """Let compute issued from now on start after the bytes of ``stage`` and those before it."""
        self._pass(self._order[stage])

    def wait_all(self) -> None:
        """Let compute issued from now on start after every byte."""
        self._pass(len(self._order) - 1)

    def hold(self, stages: Iterable[Stage], mark: CopyMark) -> None:
        """Hold the doors of ``stages`` until ``mark``, which comes after every earlier one."""
        for stage in stages:
            self._marks[self._order[stage.name]] = mark
        self._recent = [*self._recent[-1:], mark]

    def reset(self) -> None:
        """Let go of every door: the copies are done or undone."""
        self._marks.clear()
        self._recent.clear()

    def _pass(self, index: int) -> None:
        if not self._marks:
            return
        reached = [held for held in self._marks if held <= index]
        if reached:
            # Copies run in order, so the last one covers the others.
            self._marks[max(reached)].wait()
            for held in reached:
                del self._marks[held]
