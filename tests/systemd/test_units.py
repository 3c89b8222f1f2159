"""Units that are written, read by systemd's own tools where they are there."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from aegaeon.cli.app import main
from aegaeon.errors import ConfigError
from aegaeon.systemd.install import system_files

ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
#: Highest exposure by `systemd-analyze security`, of 10; up to 2.9 it calls a unit "OK".
EXPOSURE = {"aegaeon-scheduler": 1.6, "aegaeon-gateway": 1.6, "aegaeon-worker@0": 2.2}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Commands where a sandboxed service can see them, as `verify` wants them to be there."""
    folder = tmp_path / "opt" / "bin"
    folder.mkdir(parents=True)
    for name in ("aegaeon-scheduler", "aegaeon-gateway", "aegaeon-worker"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def root(tmp_path: Path, programs: Path) -> Path:
    """What an installation has written."""
    root = tmp_path / "root"
    arguments = ["install-service", "--root", str(root), "--programs", str(programs)]
    assert main(arguments) == 0
    return root


def analyze(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    worker = folder / "aegaeon-worker@.service"
    shutil.copy(worker, folder / "aegaeon-worker@0.service")
    return subprocess.run(
        [ANALYZE, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=50
    )


UNITS = ("./aegaeon-scheduler.service", "./aegaeon-gateway.service", "./aegaeon-worker@0.service")


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_units(root: Path) -> None:
    done = analyze(root / "etc/systemd/system", "verify", "./aegaeon.target", *UNITS)
    assert (done.returncode, _of_ours(done.stderr)) == (0, [])


@needs_systemd
def test_systemd_finds_nothing_wrong_with_a_user_s_units(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["install-service", "--user", "--programs", str(programs)]) == 0
    folder = tmp_path / "config/systemd/user"
    done = analyze(folder, "--user", "verify", "./aegaeon.target", *UNITS)
    assert (done.returncode, _of_ours(done.stderr)) == (0, [])
    for unit in folder.iterdir():
        text = unit.read_text()
        for word in ("User=", "Protect", "Private", "multi-user", "network-online", "DeviceAllow"):
            assert word not in text


@needs_systemd
@pytest.mark.parametrize("unit", EXPOSURE)
def test_services_are_exposed_to_little(root: Path, unit: str) -> None:
    folder = root / "etc/systemd/system"
    done = analyze(folder, "security", "--offline=true", f"./{unit}.service")
    found = re.search(r"Overall exposure level for \S+ ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE[unit], done.stdout


def test_daemons_run_from_where_they_are_installed(root: Path, programs: Path) -> None:
    folder = root / "etc/systemd/system"
    for unit, daemon in (
        ("aegaeon-scheduler.service", "aegaeon-scheduler"),
        ("aegaeon-gateway.service", "aegaeon-gateway"),
        ("aegaeon-worker@.service", "aegaeon-worker"),
    ):
        assert f"\nExecStart={programs}/{daemon} " in (folder / unit).read_text()


def test_an_environment_file_of_the_operator_s_is_left_alone(
    root: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = root / "etc/aegaeon/aegaeon.env"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert not [line for line in file.read_text().splitlines() if line and line[0] != "#"]
    file.write_text("AEGAEON_LOG_LEVEL=DEBUG\n")
    unit = root / "etc/systemd/system/aegaeon.target"
    unit.write_text("stale")
    arguments = ["install-service", "--root", str(root), "--programs", str(programs)]
    assert main(arguments) == 0
    assert file.read_text() == "AEGAEON_LOG_LEVEL=DEBUG\n"
    assert "[Install]" in unit.read_text()
    said = capsys.readouterr().out
    assert f"kept  {file}" in said
    assert "systemctl enable --now aegaeon.target" in said


@pytest.mark.parametrize("folder", ["/home/me/venv/bin", "/root/venv/bin"])
def test_programs_that_the_sandbox_hides_are_refused(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ProtectHome"):
        system_files(tmp_path, Path(folder))


def test_a_python_that_the_sandbox_hides_is_refused(programs: Path, tmp_path: Path) -> None:
    """As that of a virtual environment made with a Python out of somebody's home."""
    (programs / "python").symlink_to("/home/me/.pyenv/versions/3.12/bin/python3")
    with pytest.raises(ConfigError, match=r"/home/me/\.pyenv.*ProtectHome"):
        system_files(tmp_path, programs)
    (programs / "python").unlink()
    (programs / "python").symlink_to("/usr/bin/python3")
    assert system_files(tmp_path, programs)


def _of_ours(stderr: str) -> list[str]:
    """Complaints about these units, and not about others of the machine."""
    return [line for line in stderr.splitlines() if "aegaeon" in line]
