"""Which package may import what, read from the source and tried out."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.repo.checkout import PACKAGES, ROOT

#: Top-level modules that a package must not import, at any depth of its code.
FORBIDDEN = {
    "aegaeon": {"aegaeon_scheduler", "aegaeon_worker", "torch"},
    "aegaeon_scheduler": {"aegaeon_worker", "torch", "transformers"},
    "aegaeon_worker": {"aegaeon_scheduler"},
}
#: Distributions of modules that machines without a GPU do not have.
ABSENT = {"cuda": ["cuda-bindings"], "pynvml": ["nvidia-ml-py"]}
#: A program that the demo model's download starts; no module imports it.
CONVERSION = "aegaeon/demo_conversion.py"
#: Subcommands stand above all packages, and import what they need when they run.
COMMANDS = "aegaeon/cli/"


def imports(folder: Path) -> Iterator[tuple[str, str]]:
    """Every import in a package: where it stands, and the top-level module it names."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in names:
                where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
                yield where, name.partition(".")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_stay_within_the_layer(package: str) -> None:
    found = [
        f"{where} imports {module}"
        for where, module in imports(PACKAGES[package])
        if module in FORBIDDEN[package] and not where.startswith((CONVERSION, COMMANDS))
    ]
    assert not found


def test_using_the_client_loads_no_torch() -> None:
    assert loaded_modules("aegaeon", "torch", "aegaeon_scheduler", "aegaeon_worker") == set()


def test_a_running_scheduler_holds_no_torch() -> None:
    assert loaded_modules("aegaeon_scheduler", "torch", "transformers") == set()


def test_every_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    optional = [*extras["demo"], *extras["gateway"], *extras["gpu"], *extras["tracing"]]
    requirements = [*project["dependencies"], *optional]
    declared = {canonicalize_name(Requirement(requirement).name) for requirement in requirements}
    owners = ABSENT | packages_distributions()
    # A namespace package (google) has several owners; one of them declared is enough.
    found = [
        f"{where} imports {module}"
        for package in PACKAGES.values()
        for where, module in imports(package)
        if module not in sys.stdlib_module_names and module not in PACKAGES
        if not {canonicalize_name(owner) for owner in owners.get(module, [])} & declared
    ]
    assert not found


def loaded_modules(package: str, *wanted: str) -> set[str]:
    """Which of ``wanted`` a fresh process holds after importing all of a package."""
    conversion = CONVERSION.removesuffix(".py").replace("/", ".")
    code = (
        f"import importlib, pkgutil, sys, {package} as package\n"
        "for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        f"    if module.name != {conversion!r}:\n"
        "        importlib.import_module(module.name)\n"
        f"print(*set({wanted!r}) & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())
