"""An older release of the daemons and the client, out of this repository's own history."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.daemons import START_S

_ROOT = Path(__file__).parents[2]
_CLIENT = Path(__file__).with_name("older_client.py")
#: The last commit before sessions took several requests in one message. Its scheduler ignores such
#: messages, it knows neither drains nor prefix caching, and its workers speak contract version 1.
COMMIT = "cf6450b19f9c76f27d39182ecba45ac973816cb1"


class OlderRelease:
    """Its packages in a folder."""

    def __init__(self, folder: Path) -> None:
        """Skips the test where the history does not reach back far enough."""
        archive = subprocess.run(
            ["git", "archive", COMMIT, "aegaeon", "scheduler", "worker"],
            cwd=_ROOT,
            capture_output=True,
        )
        if archive.returncode != 0:
            said = archive.stderr.decode().strip()
            pytest.skip(f"the older release is not in the history of this checkout: {said}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        paths = [folder, folder / "scheduler", folder / "worker"]
        self._folder = folder
        self._path = os.pathsep.join(map(str, paths))

    @property
    def prefix(self) -> list[str]:
        """The words before a command that make Python run this release."""
        return ["env", "-C", str(self._folder), f"PYTHONPATH={self._path}"]

    def serve(
        self, address: str, models: Sequence[str], prompt: Sequence[int], new_tokens: int
    ) -> list[list[int]]:
        """What its client gets for a prompt from each model, all asked at once."""
        asked = json.dumps({"models": models, "prompt": prompt, "new_tokens": new_tokens})
        done = subprocess.run(
            [*self.prefix, sys.executable, str(_CLIENT), address, asked],
            capture_output=True,
            text=True,
            timeout=START_S,
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        # Else this would test the present client against itself.
        assert Path(told["package"]).is_relative_to(self._folder)
        tokens: list[list[int]] = told["tokens"]
        return tokens
