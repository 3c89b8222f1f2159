"""Where and with what a figure was measured."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import psutil

_PACKAGES = ("aegaeon-grpc", "torch", "transformers", "tokenizers", "grpcio", "protobuf")


def describe_machine() -> dict[str, str]:
    """Processor, memory, system, and how busy it is right now; no name of the machine."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "busy before": f"{psutil.cpu_percent(interval=2.0):.0f} %",
    }


def describe_versions() -> dict[str, str]:
    """Python, the packages that matter, and the commit."""
    versions = {"python": platform.python_version()}
    versions |= {name: version(name) for name in _PACKAGES}
    return versions | {"commit": _commit()}


def describe_command(module: str) -> str:
    """The command of this run."""
    return " ".join(["python", "-m", module, *sys.argv[1:]])


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    if commit.returncode != 0:
        return "unknown"
    changes = subprocess.run(
        [*git, "status", "--porcelain"], capture_output=True, text=True, check=False
    )
    return commit.stdout.strip() + (" with changes" if changes.stdout.strip() else "")
