"""Which checkpoints are read, whatever was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from aegaeon.errors import PermissionDeniedError
from aegaeon.security.model_rules import ModelRules


def test_code_of_a_model_runs_only_where_the_operator_said_so(tmp_path: Path) -> None:
    with pytest.raises(PermissionDeniedError, match="--allow-remote-code"):
        ModelRules().check("m", tmp_path, trust_remote_code=True)
    ModelRules().check("m", tmp_path, trust_remote_code=False)
    ModelRules(allow_remote_code=True).check("m", tmp_path, trust_remote_code=True)


def test_folders_outside_the_roots_are_refused_however_they_are_spelled(tmp_path: Path) -> None:
    root, outside = tmp_path / "models", tmp_path / "models-secret"
    for folder in (root / "a", outside):
        folder.mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (tmp_path / "alias").symlink_to(root)
    rules = ModelRules(roots=(tmp_path / "alias",))
    for allowed in (root, root / "a", tmp_path / "alias" / "a", root / ".." / "models" / "a"):
        rules.check("m", allowed, trust_remote_code=False)
    for refused in (
        outside,
        tmp_path,
        root / "link",
        root / ".." / "models-secret",
        Path("/etc"),
        Path("~"),
        Path(),
    ):
        with pytest.raises(PermissionDeniedError, match="--model-root"):
            rules.check("m", refused, trust_remote_code=False)
