"""The command line: its subcommands, and how errors are told."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from aegaeon.cli.drain import drain
from aegaeon.cli.install_service import install_service
from aegaeon.cli.keys import keys
from aegaeon.cli.plan import plan
from aegaeon.cli.probe import probe
from aegaeon.cli.simulate import simulate
from aegaeon.errors import AegaeonError

app = typer.Typer(
    name="aegaeon",
    help="Serve many language models on few devices.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(simulate)
app.command()(plan)
app.command()(drain)
app.command()(install_service)
app.command()(probe)
app.add_typer(keys, name="keys")

#: What typer raises for wrong usage; typer has no public name for this base class.
_USAGE_ERROR = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status. Errors are one line on standard error."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        # Bare, it explains itself, which is not an error.
        status = app(args=arguments or ["--help"], prog_name="aegaeon", standalone_mode=False)
    except AegaeonError as error:
        return _fail(str(error), 2)
    except typer.Abort:
        return _fail("interrupted", 130)
    except Exception as error:
        if not isinstance(error, _USAGE_ERROR):
            raise
        return _fail(error.format_message(), 2)  # type: ignore[attr-defined]
    return status if isinstance(status, int) else 0


def _fail(text: str, status: int) -> int:
    print(f"error: {text}", file=sys.stderr)
    return status
