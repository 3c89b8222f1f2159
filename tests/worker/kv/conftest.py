from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.worker.device.makers import KINDS
from tests.worker.kv.memory_harness import ODD_SHAPE, SHAPE, Harness, MakeHarness


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[MakeHarness]:
    made = []

    def build(**options: int) -> Harness:
        made.append(Harness({"a": SHAPE, "b": ODD_SHAPE}, kind=request.param, **options))
        return made[-1]

    yield build
    for harness in made:
        harness.memory.audit()
        harness.close()
