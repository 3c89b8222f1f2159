"""What users install: the wheel, in an environment that has never seen the checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.repo.checkout import PACKAGES, ROOT, build_wheel, tracked_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it; returns its ``bin``.

    Dependencies come from this environment through a path file, behind the wheel: they are
    gigabytes, and editable installs are not seen that way.
    """
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", str(wheel)], check=True)
    variables = {"base": str(folder), "platbase": str(folder)}
    site_packages = Path(sysconfig.get_path("purelib", "venv", vars=variables))
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "dependencies.pth").write_text("\n".join(sorted(paths)))
    return folder / "bin"


def run(environment: Path, *command: str) -> str:
    """Output of a command of the environment, run far from the checkout."""
    program = str(environment / command[0])
    done = subprocess.run(
        [program, *command[1:]], cwd=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_contains_every_tracked_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    expected = {
        str(name / (ROOT / path).relative_to(folder))
        for name, folder in ((Path(name), folder) for name, folder in PACKAGES.items())
        for path in tracked_files()
        if (ROOT / path).is_relative_to(folder)
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == expected


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_come_from_the_wheel(environment: Path, package: str) -> None:
    location = run(environment, "python", "-c", f"import {package} as p; print(p.__file__)")
    assert Path(location).is_relative_to(environment.parent)


@pytest.mark.parametrize("script", PROJECT["scripts"])
def test_console_scripts_explain_themselves(environment: Path, script: str) -> None:
    assert script in run(environment, script, "--help")


def test_version_is_the_project_version(environment: Path) -> None:
    code = f"import importlib.metadata as m; print(m.version({PROJECT['name']!r}))"
    assert run(environment, "python", "-c", code).strip() == PROJECT["version"]
