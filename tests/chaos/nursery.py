"""Starts daemons by forking a process that has imported everything, in milliseconds.

A worker imports torch, which takes seconds; a thousand rounds that kill workers cannot wait for
that. This process has no threads and no gRPC of its own, so what it forks is as good as new. It
reads one JSON line per daemon from its standard input, and writes one per start and one per end.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import importlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Flags in the control folder, each a file: allocations of shared memory fail; every file of a
#: checkpoint takes as many seconds to open as the file says.
SHM_FULL = "shm-full"
SLOW_DISK = "slow-disk"
_PR_SET_PDEATHSIG = 1
_PRELOADED = (
    "transformers.models.gemma2.modeling_gemma2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3.modeling_qwen3",
    "aegaeon.http.__main__",
    "aegaeon_scheduler.__main__",
    "aegaeon_worker.__main__",
    "aegaeon_worker.service.daemon",
)


def main() -> None:
    _import_everything()
    print(json.dumps({"up": os.getpid()}), flush=True)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pending = b""
    while True:
        readable, _, _ = select.select([0, wake], [], [])
        if wake in readable:
            os.read(wake, 4096)
            _report_ends()
        if 0 in readable:
            data = os.read(0, 65_536)
            if not data:
                os._exit(0)  # the children follow by their parent-death signal
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                print(json.dumps({"started": _fork(order), "name": order["name"]}), flush=True)


def _import_everything() -> None:
    import torch

    for name in _PRELOADED:
        importlib.import_module(name)

    torch.set_num_threads(1)


def _report_ends() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps({"ended": pid, "status": code}), flush=True)


def _fork(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        status = _become(order)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _become(order: dict[str, Any]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.closerange(3, 256)
    faulthandler.register(signal.SIGUSR1)
    ready = os.open(order["ready"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    _confine_faults(Path(order["control"]))
    if order.get("advertise"):
        _advertise(order["advertise"])
    main = _mains()[order["module"]]
    return main([*order["flags"], "--ready-fd", str(ready)]) or 0


def _mains() -> dict[str, Callable[[list[str]], int | None]]:
    import aegaeon.http.__main__
    import aegaeon_scheduler.__main__
    import aegaeon_worker.__main__

    return {
        "aegaeon.http": aegaeon.http.__main__.main,
        "aegaeon_scheduler": aegaeon_scheduler.__main__.main,
        "aegaeon_worker": aegaeon_worker.__main__.main,
    }


def _confine_faults(control: Path) -> None:
    """Faults of the machine that need no privilege here: only this process sees them."""
    from aegaeon_worker.models import checkpoint

    allocate, safe_open = os.posix_fallocate, checkpoint.safe_open

    def allocate_unless_full(fd: int, offset: int, size: int) -> None:
        if (control / SHM_FULL).exists():
            raise OSError(errno.ENOSPC, "No space left on device (a fault of the test)")
        allocate(fd, offset, size)

    def open_slowly(*arguments: Any, **options: Any) -> Any:
        flag = control / SLOW_DISK
        if flag.exists():
            time.sleep(float(flag.read_text() or 0))
        return safe_open(*arguments, **options)

    os.posix_fallocate = allocate_unless_full
    checkpoint.safe_open = open_slowly  # type: ignore[assignment]


def _advertise(address: str) -> None:
    """Let the worker register an address that is not its own: that of a proxy."""
    from aegaeon_worker.service import daemon

    bind = daemon.bind

    def bind_and_advertise(*arguments: Any, **options: Any) -> str:
        bind(*arguments, **options)
        return address

    daemon.bind = bind_and_advertise


if __name__ == "__main__":
    main()
