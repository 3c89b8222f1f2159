"""Links within the repository lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repo.checkout import ROOT, tracked_files

_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
DOCUMENTS = [path for path in tracked_files() if path.suffix == ".md"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_to_files(document: Path) -> None:
    text = (ROOT / document).read_text()
    folder = (ROOT / document).parent
    missing = [target for target in _LINK.findall(text) if not (folder / target).exists()]
    assert not missing
