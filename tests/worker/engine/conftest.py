"""Engines at both paces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon_worker.models.generic import GenericModel
from aegaeon_worker.models.native.model import NativeModel
from tests.worker.engine.harness import DEVICE, EngineHarness
from tests.worker.engine.pace import one_ahead, plain_decode_step


@pytest.fixture
def shm_dir(tmp_path: Path) -> Iterator[Path]:
    """A node's shared memory, in which an engine must leave nothing."""
    yield tmp_path
    assert list(tmp_path.glob("aegaeon-*")) == [], "the worker left files behind"


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of this test issue steps ahead and record them, as on a GPU, or on one."""
    if DEVICE != "cpu":
        return
    monkeypatch.setattr(EngineHarness, "choose", staticmethod(one_ahead))
    for kind in (NativeModel, GenericModel):
        monkeypatch.setattr(kind, "decode_step", property(plain_decode_step))


@pytest.fixture(params=["step by step", "one step ahead"])
def pace(request: pytest.FixtureRequest) -> str:
    """How the engines of a test run their steps: as on a CPU, or as on a GPU."""
    name: str = request.param
    if DEVICE != "cpu" and name == "step by step":
        pytest.skip("a GPU is always one step ahead")
    if name == "one step ahead":
        request.getfixturevalue("ahead")
    return name
