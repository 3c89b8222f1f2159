"""How the interpreter that all threads of a worker share is set up."""

from __future__ import annotations

import gc
import sys

#: A thread that comes back to Python, as the engine's does several times in a step, waits at most
#: so long for one that computes in Python, such as one that opens a checkpoint. Python's own 5 ms
#: are as long as a whole step.
_SWITCH_INTERVAL_S = 0.0005


def begin_start() -> None:
    """While modules are imported, there is no garbage worth looking for."""
    gc.disable()


def end_start() -> None:
    """Leave what exists by now, which stays as long as the process, out of garbage collections.

    Torch and transformers are 400,000 objects. To go through them takes 0.2 s and more, in which
    no step is issued and no token moves.
    """
    gc.freeze()
    gc.enable()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
