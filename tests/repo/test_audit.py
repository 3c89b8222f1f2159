"""What an audit of the dependencies says, by what the registry tells."""

from __future__ import annotations

import pytest

from tools.audit import verdict

CLEAN = {"name": "clean", "version": "1", "vulns": []}
UNKNOWN = {"name": "unknown", "skip_reason": "unknown could not be audited"}
KNOWN = {
    "name": "bad",
    "version": "2",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"], "aliases": ["CVE-1"], "description": ""}],
}


def test_a_known_vulnerability_fails_and_says_what_mends_it() -> None:
    status, lines = verdict([CLEAN, KNOWN])
    assert status == 1
    assert lines == ["bad 2: PYSEC-1 CVE-1; mended in 3"]


@pytest.mark.parametrize("dependencies", [[], [UNKNOWN]])
def test_a_registry_without_advisories_is_no_failure_and_no_success(
    dependencies: list[dict[str, object]],
) -> None:
    status, lines = verdict(dependencies)
    assert status == 0
    assert lines[0].startswith("NOT CHECKED")
    assert len(lines) == 1


def test_what_was_not_checked_is_named_beside_what_was() -> None:
    status, lines = verdict([CLEAN, UNKNOWN])
    assert status == 0
    assert "unknown" in lines[0]
    assert lines[1] == "1 dependencies checked: no known vulnerability"
