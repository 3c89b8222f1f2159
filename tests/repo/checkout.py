"""The checkout under test: its folder, its packages, its tracked files."""

from __future__ import annotations

import shutil
import subprocess
import sys
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


def build_wheel(source: Path, out: Path) -> Path:
    """The wheel, built in ``source`` from the tracked files alone, so that a file that was never
    added is missed."""
    for path in tracked_files():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, source / path)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))
