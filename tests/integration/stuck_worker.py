"""``aegaeon-worker`` whose engine sticks in its 30th step, as if in a kernel that never ends."""

from __future__ import annotations

import itertools
import threading

from aegaeon_worker.__main__ import main
from aegaeon_worker.engine.engine import Engine

_steps = itertools.count()
_step = Engine._step_turn


def stick(self: Engine, *arguments: object) -> None:
    if next(_steps) == 30:
        threading.Event().wait()
    _step(self, *arguments)  # type: ignore[arg-type]


if __name__ == "__main__":
    Engine._step_turn = stick  # type: ignore[method-assign]
    main()
