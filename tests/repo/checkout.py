"""The checkout under test: its folder, its packages, its tracked files."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Where each package lies.
PACKAGES = {
    "aegaeon": ROOT / "aegaeon",
    "aegaeon_scheduler": ROOT / "scheduler" / "aegaeon_scheduler",
    "aegaeon_worker": ROOT / "worker" / "aegaeon_worker",
}


def tracked_files() -> list[Path]:
    """Files that a fresh clone has, relative to ``ROOT``."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    paths = [Path(name) for name in listing.split("\0") if name]
    return [path for path in paths if (ROOT / path).exists()]
