"""What the doctor finds, and what it says to change."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from aegaeon.cli import findings
from aegaeon.cli.app import main
from aegaeon.machine import Machine, gpu_count

GIB = 1024**3


def test_a_machine_that_can_serve_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", "0", "--json"]) == 0
    found = {one["what"]: one for one in json.loads(capsys.readouterr().out)}
    assert {"python", "torch", "memory", "open files", "locked memory", "GPUs"} <= set(found)
    assert all(one["level"] != "fail" for one in found.values())


def test_a_container_with_little_shared_memory_is_told_the_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = Machine(8 * GIB, 8 * GIB, "/dev/shm", 64 << 20, 64 << 20, 2)
    monkeypatch.setattr(findings, "detect_machine", lambda _: small)
    assert main(["doctor", "--port", "0"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  shared memory /dev/shm: 0.1 of 0.1 GiB free; at least 1 are needed" in out
    assert "--shm-size" in out


def test_a_folder_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--shm-dir", "/nowhere"]) == 1
    assert "FAIL  shared memory: shm_dir /nowhere" in capsys.readouterr().out


def test_a_port_in_use_is_a_failure_only_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["doctor", "--port", port]) == 0
        assert f"warn  port 127.0.0.1:{port}: Address already in use" in capsys.readouterr().out
        assert main(["doctor", "--port", port, "--strict"]) == 1


@pytest.mark.parametrize(
    ("text", "torch", "level", "word"),
    [
        ("NVRM version: NVIDIA UNIX Module  580.65.06  Release", "2.13.0", "ok", "580.65.06"),
        ("NVRM version: NVIDIA UNIX Module  570.10  Release", "2.13.0+cu130", "fail", "580"),
        ("NVRM version: NVIDIA UNIX Module  570.10  Release", "2.9.0+cu128", "ok", "570.10"),
        ("NVRM version: NVIDIA UNIX Module  580.65.06", "2.13.0+cpu", "fail", "built for CPUs"),
        (None, "2.13.0", "fail", "not loaded"),
    ],
)
def test_driver_and_torch_must_fit(
    text: str | None, torch: str, level: str, word: str, tmp_path: Path
) -> None:
    file = tmp_path / "version"
    if text is not None:
        file.write_text(text)
    found = findings._driver(file, torch)
    assert (found.level, bool(found.advice)) == (level, level != "ok")
    assert word in found.found


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 3), ("", 0), ("0,2", 2), ("0,-1,2", 1), ("GPU-1,GPU-2", 2)]
)
def test_gpus_are_those_that_workers_may_take(
    visible: str | None, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_count(tmp_path) == count


def test_a_processor_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    assert findings._cpu_quota(file) is None
    file.write_text("max 100000\n")
    assert findings._cpu_quota(file) is None
    file.write_text("150000 100000\n")
    assert findings._cpu_quota(file) == 1.5
