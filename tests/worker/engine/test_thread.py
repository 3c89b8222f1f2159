"""The engine's thread, which takes commands between steps."""

from __future__ import annotations

import threading

from aegaeon_worker.engine.thread import EngineThread


class Patient:
    """Would wait for ever ahead of its first step, unless it is told something."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.stepped = threading.Event()
        self.spare_s = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self.told) and not self.stepped.is_set()

    def handle(self, command: str) -> None:
        self.told.append(command)
        self.spare_s = 10_000.0 if command == "wait" else 0.0

    def step(self) -> None:
        self.stepped.set()


def test_commands_are_taken_while_the_engine_has_time_to_spare() -> None:
    engine, thread = Patient(), EngineThread[str]()
    thread.start(engine)
    thread.submit("wait")
    assert not engine.stepped.wait(0.05)
    thread.submit("go on")
    assert engine.stepped.wait(60)
    thread.stop()
    assert engine.told == ["wait", "go on"]
