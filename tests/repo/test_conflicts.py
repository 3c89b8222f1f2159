"""No file keeps the marks of a merge that was not finished."""

from __future__ import annotations

import re

from tests.repo.checkout import ROOT, tracked_files

_MARK = re.compile(rb"^(?:<{7} .+|={7}|>{7} .+)$", re.MULTILINE)


def test_no_file_has_a_conflict_in_it() -> None:
    assert not [path for path in tracked_files() if _MARK.search((ROOT / path).read_bytes())]
