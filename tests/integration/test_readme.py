"""The README's example does what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from aegaeon.demo_model import fetch_demo_model

README = Path(__file__).parents[2] / "README.md"


def test_the_python_example_prints_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_demo_model()
    monkeypatch.delenv("AEGAEON_ADDRESS", raising=False)
    # The second one needs a gateway, see tests/cli/test_readme.py.
    example, _ = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) >= 4
