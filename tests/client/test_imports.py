"""Clients are light: no torch, no seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MEASURE = """
import json, sys, time
started = time.process_time()
{statement}
print(json.dumps([time.process_time() - started, "torch" in sys.modules]))
"""


def measure(statement: str) -> tuple[float, bool]:
    code = MEASURE.format(statement=statement)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    seconds, torch = json.loads(result.stdout)
    return seconds, torch


@pytest.mark.parametrize(
    "statement",
    ["import aegaeon", "import aegaeon.config, aegaeon.models, aegaeon.model_registry"],
)
def test_imports_take_under_half_a_second_without_torch(statement: str) -> None:
    # Processor time: other work on the machine does not count.
    seconds, torch = measure(statement)
    assert seconds < 0.5
    assert not torch


def test_the_whole_client_imports_without_torch() -> None:
    modules = "service, demo_model, utils, replay, config.cluster"
    statement = "import " + ", ".join(f"aegaeon.{name.strip()}" for name in modules.split(","))
    assert not measure(statement)[1]


def test_every_exported_name_resolves() -> None:
    statement = "import aegaeon; [getattr(aegaeon, name) for name in aegaeon.__all__]"
    assert not measure(statement)[1]
