"""The command as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aegaeon.cli.app import main


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_subcommand(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("plan", "simulate"))


def test_an_unknown_subcommand_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulat"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: No such command 'simulat'")
    assert err.count("\n") == 1


def test_help_loads_no_subcommand() -> None:
    code = (
        "import sys\n"
        "from aegaeon.cli.app import main\n"
        "main(['--help'])\n"
        "heavy = {'torch', 'grpc', 'pydantic', 'aegaeon_scheduler', 'aegaeon_worker'}\n"
        "print(*heavy & set(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""
