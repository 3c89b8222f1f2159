"""The Node.js example installs from any registry, without running anything."""

from __future__ import annotations

import json

from tests.repo.checkout import ROOT

NODE = ROOT / "examples" / "node"


def test_the_lock_file_names_no_registry() -> None:
    packages = json.loads((NODE / "package-lock.json").read_text())["packages"]
    assert packages
    assert not [name for name, entry in packages.items() if "resolved" in entry]


def test_installing_runs_no_scripts() -> None:
    assert "ignore-scripts=true" in (NODE / ".npmrc").read_text().splitlines()
