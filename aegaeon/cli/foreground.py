"""An instance in this process, with signals and logs; or in one that is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from aegaeon.cli.progress import StepView
from aegaeon.errors import AegaeonError, UnavailableError
from aegaeon.instances.log_copy import LogCopy
from aegaeon.instances.plan import InstancePlan
from aegaeon.instances.records import InstanceRecord
from aegaeon.instances.running import RunningInstance, StoppedError
from aegaeon.instances.steps import Report, StepWriter, read_steps
from aegaeon.rpc.notify import notify


def run_here(
    plan: InstancePlan, copy_logs: bool, on_ready: Callable[[InstanceRecord], None]
) -> None:
    """Start the instance, and keep it until a signal."""
    view = StepView()

    def report_ready(record: InstanceRecord) -> LogCopy:
        view.stop()
        on_ready(record)
        return LogCopy(Path(record.log_dir), sys.stderr.buffer if copy_logs else None)

    try:
        _run(plan, view, report_ready)
    finally:
        view.stop()


def run_reporting(plan: InstancePlan, fd: int) -> None:
    """As `run_here`, for a process that reads what this one writes to ``fd``, errors included, and
    goes away once the instance serves."""
    report = StepWriter(fd)

    def report_ready(record: InstanceRecord) -> LogCopy:
        log = os.open(
            Path(record.log_dir) / "supervisor.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600
        )
        for number in (1, 2):
            os.dup2(log, number)
        os.close(log)
        report(record)
        return LogCopy(Path(record.log_dir), None)

    try:
        _run(plan, report, report_ready)
    except AegaeonError as error:
        if report.ended:  # its starter has gone, and standard error is a log
            raise
        report(error)
        raise typer.Exit(1) from error


def run_detached(arguments: Sequence[str]) -> InstanceRecord:
    """Run ``aegaeon`` with these arguments in a session of its own; returns once it serves, raises
    what kept it from that."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "aegaeon.cli", *arguments, "--report-fd", str(write)],
        pass_fds=(write,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(write)
    view = StepView()
    try:
        with os.fdopen(read, encoding="utf-8") as pipe:
            for item in read_steps(pipe):
                view(item)
                if isinstance(item, AegaeonError):
                    process.wait()
                    raise item
                if isinstance(item, InstanceRecord):
                    return item
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    finally:
        view.stop()
    status = process.wait()
    raise UnavailableError(f"the instance ended with exit status {status} before it served")


def _run(
    plan: InstancePlan, report: Report, report_ready: Callable[[InstanceRecord], LogCopy]
) -> None:
    # Once, and looked at where nothing is half done. A second signal changes nothing: the end is
    # under way and takes a bounded time.
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        running = RunningInstance(plan, report, stop)
    except StoppedError:
        raise KeyboardInterrupt from None
    try:
        logs = report_ready(running.record)
        notify("READY=1")
        running.wait(logs.turn)
    finally:
        notify("STOPPING=1")
        running.close()
