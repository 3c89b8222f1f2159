"""A configuration file that is wrong starts nothing, and is told where and how it is wrong."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from aegaeon import LLMService
from aegaeon.errors import ConfigError
from aegaeon.model_spec import ModelSpec
from tests.integration.workload import tiny_node

GOOD = "server:\n  num_engines: 1\nmodels:\n  - name: tiny\n    path: {path}\n"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("num_engines: 1", "num_engine: 1", ["server.num_engine", "num_engines"]),
        ("num_engines: 1", "num_engines: one", ["server.num_engines", "integer"]),
        ("num_engines: 1", "num_engines: -1", ["server.num_engines", "0"]),
        ("name: tiny", "name: 7", ["models[0].name", "string"]),
        ("    path:", "    pat:", ["models[0].pat", "path"]),
        ("models:", "models: 3\nmodel:", ["model"]),
        ("server:", "server: [", ["not valid YAML"]),
        ("{path}", "/nowhere/at/all", ["/nowhere/at/all", "tiny"]),
    ],
)
def test_a_wrong_file_is_refused_before_anything_starts(
    tiny_models: list[ModelSpec], tmp_path: Path, old: str, new: str, words: list[str]
) -> None:
    assert old in GOOD
    file = tmp_path / "wrong.yaml"
    file.write_text(GOOD.replace(old, new).replace("{path}", tiny_models[0].path()))
    before = psutil.Process().children()
    with pytest.raises(ConfigError) as caught:
        LLMService.from_config(file)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert psutil.Process().children() == before


def test_a_node_names_the_wrong_file_too(tiny_models: list[ModelSpec], tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("server:\n  num_engine: 1\n")
    with pytest.raises(ConfigError, match=r"wrong.yaml:2.*num_engine"):
        tiny_node(tiny_models, config_path=str(file))
