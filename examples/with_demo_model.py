"""Run ``python_api.py`` with the demo model in place of its own, which may not be here."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETTINGS = Path("docs/en/examples/simple.yaml")
_ENTRY = "  - name: Qwen/Qwen3-4B\n"


def adapt(folder: Path, model: Path) -> None:
    """Write the example's configuration below ``folder``, with ``model`` as its model's path."""
    text = (ROOT / SETTINGS).read_text()
    if _ENTRY not in text:
        raise SystemExit(f"{SETTINGS} does not name the example's model")
    settings = folder / SETTINGS
    settings.parent.mkdir(parents=True)
    settings.write_text(text.replace(_ENTRY, f"{_ENTRY}    path: {model}\n"))


def main() -> int:
    """Run the example in a folder of its own; returns its status."""
    from aegaeon.demo_model import fetch_demo_model

    with tempfile.TemporaryDirectory() as folder:
        adapt(Path(folder), fetch_demo_model())
        example = [sys.executable, str(ROOT / "examples" / "python_api.py")]
        return subprocess.run(example, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
