"""No process is started by fork: gRPC and torch have threads, which a forked child lacks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.repo.checkout import PACKAGES, ROOT

FORKS = {"fork", "forkpty"}
#: Starts by fork unless it is told otherwise, or runs code between fork and exec.
FORKING_MODULES = {"multiprocessing", "pty", "concurrent.futures.process"}
FORKING_ARGUMENTS = {"preexec_fn"}
FORKING_NAMES = {"ProcessPoolExecutor"}


def forks(tree: ast.AST) -> Iterator[str]:
    """Whatever in a module may fork."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if name in FORKS | FORKING_NAMES:
                yield name
            case ast.Import(names=names):
                yield from (a.name for a in names if a.name.split(".")[0] in FORKING_MODULES)
            case ast.ImportFrom(module=str(module), names=names):
                if module in FORKING_MODULES or module.split(".")[0] in FORKING_MODULES:
                    yield module
                yield from (a.name for a in names if a.name in FORKS | FORKING_NAMES)
            case ast.keyword(arg=str(name)) if name in FORKING_ARGUMENTS:
                yield name


def test_no_module_forks() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for folder in PACKAGES.values()
        for path in folder.rglob("*.py")
        if (names := list(forks(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.fork()",
        "import multiprocessing.pool",
        "from multiprocessing import Process",
        "from concurrent.futures import ProcessPoolExecutor",
        "import subprocess\nsubprocess.Popen(['x'], preexec_fn=print)",
    ],
)
def test_a_fork_would_be_found(code: str) -> None:
    assert list(forks(ast.parse(code)))
