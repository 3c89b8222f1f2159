"""The example that the project was asked for runs as it was printed, its Ray lines aside."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "python_api.py"
STAND_IN = ROOT / "examples" / "with_demo_model.py"
PRINTED = ROOT.parent / "shared" / "seed" / "python-api.txt"
#: What the example itself asks for: slabs, and room for a model beside them.
NEEDED_BYTES = 14 << 30

needs_printed = pytest.mark.skipif(not PRINTED.exists(), reason="the printed page is not here")


def printed_code() -> str:
    """The page's example, with nothing in place of the lines that speak of Ray."""
    text = PRINTED.read_text()
    code = text[text.index("import os\n") : text.index("\nInterfaces\n")]
    lines = [line for line in code.splitlines() if line != "import ray" and "ray.init(" not in line]
    return "\n".join(line.replace("ray.shutdown()", "service.close()") for line in lines)


def statements(code: str) -> list[str]:
    """The code without its layout, its documentation, and the order of its imports."""
    body = ast.parse(code).body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    others = [node for node in body if node not in imports]
    return [*sorted(map(ast.unparse, imports)), *map(ast.unparse, others)]


@pytest.fixture
def folder(tmp_path: Path, demo_model: Path) -> Path:
    """A folder with the example's configuration, the model in it replaced by one that is here."""
    runpy.run_path(str(STAND_IN))["adapt"](tmp_path, demo_model)
    return tmp_path


def run(code: str, folder: Path) -> str:
    if min(psutil.disk_usage("/dev/shm").free, psutil.virtual_memory().available) < NEEDED_BYTES:
        pytest.skip(f"the example asks for more memory than is free here: {NEEDED_BYTES} bytes")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_printed
def test_the_example_is_the_printed_one() -> None:
    assert statements(EXAMPLE.read_text()) == statements(printed_code())


def test_the_example_prints_text(demo_model: Path, tmp_path: Path) -> None:
    text = run(f"import runpy; runpy.run_path({str(STAND_IN)!r}, run_name='__main__')", tmp_path)
    words = text.split()
    assert len(words) >= 4
    assert sum(word.strip(".,").isalpha() for word in words) >= len(words) / 2, text


@needs_printed
def test_the_printed_code_needs_no_close(folder: Path) -> None:
    """As printed, nothing ends the service: it ends with the program."""
    code = printed_code().replace("service.close()", "pass")
    assert len(run(code, folder).split()) >= 4
    left = [p.pid for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(folder)]
    assert left == []
