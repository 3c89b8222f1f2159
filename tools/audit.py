"""Asks the advisories of the package registry about pinned dependencies, where it has any.

`pip-audit` lives in an environment of its own, since it is no dependency of the project. Ends with
status 1 for a known vulnerability. A registry that cannot be asked is said to be that, and is no
failure: mirrors often serve packages without their advisories.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: For everything together that the network may take, in seconds.
_PATIENCE_S = 120


def verdict(dependencies: Sequence[dict[str, Any]]) -> tuple[int, list[str]]:
    """Exit status and lines to print for what `pip-audit` says of each dependency."""
    skipped = [entry for entry in dependencies if "skip_reason" in entry]
    checked = [entry for entry in dependencies if "skip_reason" not in entry]
    lines = []
    for entry in checked:
        for found in entry["vulns"]:
            mended = ", ".join(found["fix_versions"]) or "no version yet"
            names = " ".join([found["id"], *found.get("aliases", ())])
            lines.append(f"{entry['name']} {entry['version']}: {names}; mended in {mended}")
    if not checked:
        reason = f": {skipped[0]['skip_reason']}" if skipped else ""
        return 0, [f"NOT CHECKED: the registry here has no advisories{reason}"]
    if skipped:
        names = ", ".join(entry["name"] for entry in skipped)
        lines.append(f"not checked, since the registry has no advisories on them: {names}")
    if any(entry["vulns"] for entry in checked):
        return 1, lines
    return 0, [*lines, f"{len(checked)} dependencies checked: no known vulnerability"]


def main(requirements: Path) -> int:
    """Exit status."""
    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        venv.create(folder, with_pip=True)
        tools = Path(folder, "bin")
        install = [str(tools / "pip"), "install", "--quiet", "pip-audit"]
        audit = [str(tools / "pip-audit"), "--requirement", str(requirements)]
        audit += ["--no-deps", "--disable-pip"]
        try:
            subprocess.run(install, check=True, stderr=subprocess.PIPE, timeout=_PATIENCE_S)
            told = subprocess.run(
                [*audit, "--format", "json", "--progress-spinner", "off"],
                capture_output=True,
                timeout=_PATIENCE_S,
            )
            dependencies = json.loads(told.stdout)["dependencies"]
        except subprocess.CalledProcessError as error:
            return _unasked("pip-audit cannot be installed", error.stderr)
        except subprocess.TimeoutExpired:
            return _unasked(f"the registry did not answer within {_PATIENCE_S} s", b"")
        except (ValueError, KeyError):
            return _unasked("pip-audit could not ask the registry", told.stderr)
    status, lines = verdict(dependencies)
    print("\n".join(lines))
    return status


def _unasked(what: str, said: bytes) -> int:
    last = said.decode(errors="replace").strip().splitlines()[-1:]
    print("NOT CHECKED: " + ": ".join([what, *last]))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
