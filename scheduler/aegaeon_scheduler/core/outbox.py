"""Collects what one event leads to."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_scheduler.core.backlog import Backlog
from aegaeon_scheduler.core.commands import Command, Deliver, Publish
from aegaeon_scheduler.core.notices import Notice


@dataclass(slots=True)
class Outbox:
    """Commands in order; readers to wake come last and once each."""

    _commands: list[Command] = field(default_factory=list)
    _woken: list[Backlog] = field(default_factory=list)

    def add(self, command: Command) -> None:
        """Append a command."""
        self._commands.append(command)

    def publish(self, notice: Notice) -> None:
        """Append something for watchers."""
        self._commands.append(Publish(notice))

    def wake(self, backlog: Backlog) -> None:
        """Tell a backlog's reader, unless it has been told and has not taken everything yet."""
        if not backlog.announced:
            backlog.announced = True
            self._woken.append(backlog)

    def drain(self) -> list[Command]:
        """Everything since the last call."""
        commands, self._commands = self._commands, []
        if self._woken:
            commands.append(Deliver(self._woken))
            self._woken = []
        return commands
