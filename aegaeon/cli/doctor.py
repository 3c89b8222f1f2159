"""``aegaeon doctor``: whether this machine can serve, and what to change."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from aegaeon.cli import cluster_options as options

_BROKEN = 1


def doctor(
    shm_dir: options.ShmDir = Path("/dev/shm"),
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are failures.")] = False,
    as_json: options.Json = False,
) -> None:
    """Look at memory, shared memory, limits, devices, ports and versions.

    Exit status: 0 when nothing is in the way, 1 when something is.
    """
    from aegaeon.cli.findings import examine

    findings = examine(shm_dir, host, port)
    bad = {"fail", "warn"} if strict else {"fail"}
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        signs = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
        for finding in findings:
            print(f"{signs[finding.level]}  {finding.what}: {finding.found}")
            if finding.advice:
                print(f"      {finding.advice}")
    raise typer.Exit(_BROKEN if any(finding.level in bad for finding in findings) else 0)
