"""Profiles that a YAML file names reach the scheduler that a client starts."""

from __future__ import annotations

from pathlib import Path

from aegaeon import NodeConfig
from aegaeon.local.profiles import profile_flags


def node(name: str, config: Path | None) -> NodeConfig:
    return NodeConfig(name, 0, 0, num_engines=1, config_path=str(config) if config else None)


def test_files_are_relative_to_the_yaml_file_and_given_once(tmp_path: Path) -> None:
    config = tmp_path / "models.yaml"
    config.write_text(
        "models: [{name: chat, profile: qwen2_5_7b}, {name: other}]\n"
        "devices: [{name: H800, profile: measured/h800.csv}, {name: CPU}]\n"
    )
    flags = profile_flags([node("n0", config), node("n1", config), node("n2", None)])
    profile = str(tmp_path / "measured/h800.csv")
    assert flags == ["--profile", profile, "--profile-name", "chat=qwen2_5_7b"]


def test_nodes_without_a_file_have_no_profiles() -> None:
    assert profile_flags([node("n0", None)]) == []
