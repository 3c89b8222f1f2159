"""Commands in units, compose file and documentation are commands that exist."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from aegaeon.cli.app import app
from tests.repo.checkout import ROOT

_MODULES = {
    "aegaeon-scheduler": "aegaeon_scheduler.__main__",
    "aegaeon-worker": "aegaeon_worker.__main__",
    "aegaeon-gateway": "aegaeon.http.__main__",
}
_YAML = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def parser_of(daemon: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = import_module(_MODULES[daemon])._parser()
    return parser


def documents() -> Iterator[Any]:
    text = (ROOT / "docs/kubernetes.md").read_text()
    for block in _YAML.findall(text):
        yield from yaml.safe_load_all(block)
    yield yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())


def commands(node: Any) -> Iterator[list[str]]:
    """Every list or text below that begins with one of our commands."""
    if isinstance(node, str) and node.startswith("aegaeon"):
        yield shlex.split(node)
    elif isinstance(node, list):
        words = node[1:] if node[:1] == ["CMD"] else node
        if words and isinstance(words[0], str) and words[0].startswith("aegaeon"):
            yield [str(word) for word in words]
        else:
            for item in node:
                yield from commands(item)
    elif isinstance(node, dict):
        for item in node.values():
            yield from commands(item)


FOUND = [words for document in documents() for words in commands(document) if len(words) > 1]


def test_there_are_commands_to_look_at() -> None:
    assert {words[0] for words in FOUND} == {*_MODULES, "aegaeon"}


@pytest.mark.parametrize("words", FOUND, ids=lambda words: " ".join(words[:3]))
def test_a_command_in_a_manifest_is_understood(words: list[str]) -> None:
    if words[0] in _MODULES:
        parser_of(words[0]).parse_args(words[1:])
        return
    command = typer.main.get_command(app)
    context = command.make_context("aegaeon", words[1:], resilient_parsing=False)
    assert context is not None
    name, sub, rest = command.resolve_command(context, [*words[1:]])  # type: ignore[attr-defined]
    sub.make_context(name, rest)


@pytest.mark.parametrize("daemon", _MODULES)
def test_default_flags_of_a_unit_are_understood(daemon: str) -> None:
    [unit] = [path for path in ROOT.glob("*/*/*.service") if path.name.startswith(daemon)] or [
        path for path in ROOT.glob("*/*.service") if path.name.startswith(daemon)
    ]
    text = Path(unit).read_text()
    found = re.search(r'Environment="AEGAEON_\w+_FLAGS=(.*)"', text)
    assert found is not None
    own = re.search(rf"ExecStart=/usr/bin/env {daemon} (.*)\$", text)
    assert own is not None
    line = (
        f"{own[1]} {found[1]}".replace("%i", "0")
        .replace("%t", "/run")
        .replace("%S", "/var/lib")
        .replace("%l", "node")
    )
    parser_of(daemon).parse_args(shlex.split(line))


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Containers of the manifests, each with its pod."""
    for document in documents():
        template = (document.get("spec") or {}).get("template") or {}
        pod = template.get("spec") or {}
        for container in pod.get("containers", ()):
            yield pod, container


def test_what_a_container_names_is_mounted() -> None:
    found = list(containers())
    assert {container["name"] for _, container in found} == {"scheduler", "worker-0", "gateway"}
    for pod, container in found:
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert set(mounts.values()) <= {volume["name"] for volume in pod["volumes"]}
        values = [entry.get("value", "") for entry in container["env"]]
        values += [word.partition("=")[2] or word for word in container["args"]]
        for value in values:
            if value.startswith("/"):
                assert any(Path(value).is_relative_to(mount) for mount in mounts), value


def test_every_container_shows_and_checks_certificates_and_shows_a_key() -> None:
    """Its hooks and probes run with its environment."""
    for _, container in containers():
        settings = {entry["name"] for entry in container["env"]}
        needed = {"AEGAEON_TLS_CERT", "AEGAEON_TLS_KEY", "AEGAEON_TLS_CA", "AEGAEON_TOKEN_FILE"}
        assert needed <= settings, container["name"]
        assert "livenessProbe" in container
