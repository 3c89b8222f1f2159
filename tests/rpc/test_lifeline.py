"""A child ends with its parent, whatever it does at that moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Ignores every request to stop, as a process does whose main thread is in a kernel without end.
STUCK = """
import signal, sys, threading
from pathlib import Path
from aegaeon.rpc import lifeline

lifeline.GRACE_S = 0.1
signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = lifeline.Lifeline(int(sys.argv[1]), Path(sys.argv[2]))
print("up", flush=True)
threading.Event().wait()
"""
DEADLINE_S = 60.0


def test_a_child_that_is_stuck_is_gone_soon_after_its_parent(tmp_path: Path) -> None:
    folder = tmp_path / "of-the-parent"
    folder.mkdir()
    lifeline, held = os.pipe()
    command = [sys.executable, "-c", STUCK, str(lifeline), str(folder)]
    with subprocess.Popen(
        command, pass_fds=(lifeline,), stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            os.close(lifeline)
            assert child.stdout is not None
            assert child.stdout.readline() == "up\n"
            assert child.poll() is None
            os.close(held)  # as the kernel does when the parent ends
            assert child.wait(DEADLINE_S) == 1
        finally:
            child.kill()
    assert not folder.exists()
