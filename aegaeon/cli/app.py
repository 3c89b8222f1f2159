"""The command line: its subcommands, and how errors are told."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from aegaeon.cli.bench import bench
from aegaeon.cli.deploy import deploy, undeploy
from aegaeon.cli.doctor import doctor
from aegaeon.cli.drain import drain
from aegaeon.cli.generate import generate
from aegaeon.cli.install_service import install_service
from aegaeon.cli.keys import keys
from aegaeon.cli.plan import plan
from aegaeon.cli.probe import probe
from aegaeon.cli.simulate import simulate
from aegaeon.cli.start import start
from aegaeon.cli.status import status
from aegaeon.cli.stop import stop
from aegaeon.cli.top import top
from aegaeon.errors import AegaeonError, ConfigError, ErrorReason, NotRunningError

app = typer.Typer(
    name="aegaeon",
    help="Serve many language models on few devices.",
    pretty_exceptions_enable=False,
)
_COMMANDS = (
    *(start, stop, drain, status, top),
    *(deploy, undeploy, generate, bench),
    *(doctor, probe, install_service),
    *(plan, simulate),
)
for _command in _COMMANDS:
    app.command()(_command)
app.add_typer(keys, name="keys")

#: What typer raises for wrong usage; typer has no public name for this base class.
_USAGE_ERROR = typer.BadParameter.__mro__[2]

#: It did not work; it was asked wrongly; nobody answers; Ctrl-C; the reader of its output is gone.
FAILED, MISUSED, NOT_RUNNING, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status. Errors are one line on standard error."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # Bare, it explains itself, which is not an error.
        status = app(
            args=arguments or ["--help"], prog_name="aegaeon", standalone_mode=False, obj=arguments
        )
    except AegaeonError as error:
        return _fail(describe(error), _status_of(error))
    except typer.Abort:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Nothing more can be written; nor may Python try to, at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if not isinstance(error, _USAGE_ERROR):
            raise
        return _fail(error.format_message(), MISUSED)  # type: ignore[attr-defined]
    if status == INTERRUPTED:  # typer's answer to Ctrl-C
        return _fail("interrupted", INTERRUPTED)
    return status if isinstance(status, int) else 0


def describe(error: AegaeonError) -> str:
    """One line: the reason's name, unless it is plain misuse, and the text. Of a text with the last
    output of a daemon, the first line and the last."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    text = " ".join([*lines[:1], *lines[1:][-1:]])
    named = not isinstance(error, ConfigError) and error.name != ErrorReason.UNSPECIFIED.name
    return f"{error.name}: {text}" if named else text


def _status_of(error: AegaeonError) -> int:
    if isinstance(error, ConfigError):
        return MISUSED
    return NOT_RUNNING if isinstance(error, NotRunningError) else FAILED


def _fail(text: str, status: int) -> int:
    print(f"error: {text}", file=sys.stderr)
    return status
